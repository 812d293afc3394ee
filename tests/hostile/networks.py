"""Bad models, loaders, heads, miners, metrics and losses: code that a user hands in."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.hostile.arrays import ARRAYS, JUNK, LABELS, Variant, constant, quiet, variants

N, D, Z, CLASSES = 24, 6, 3, 4


class UserError(Exception):
    """Raised by the code of a user."""


def network(seed: int = 0) -> nn.Sequential:
    """The good model."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(D, 8), nn.Tanh(), nn.Linear(8, Z))


def dropout_network() -> nn.Sequential:
    """The good model of methods that need dropout layers."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(D, 8), nn.Tanh(), nn.Dropout(), nn.Linear(8, Z))


class Returns(nn.Module):
    """A model whose output is changed by a function."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.body, self.head, self.change = nn.Linear(D, 8), nn.Linear(8, Z), change

    def forward(self, x: Tensor) -> Any:
        return self.change(self.head(self.body(x)))


class Wrapper(nn.Module):
    """As torch.compile makes it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._orig_mod = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._orig_mod(*args, **kwargs)


class Twice(nn.Module):
    """Its head runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.head(x))


class Unused(Returns):
    """Its head never runs."""

    def forward(self, x: Tensor) -> Any:
        return self.body(x)


class NoArguments(nn.Module):
    def forward(self) -> Tensor:
        return torch.ones(2, Z)


class HalfRows(nn.Module):
    """Rows are lost before the head."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(D, Z)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x[::2])


class OnTokens(nn.Module):
    """The head sees three dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(D, Z)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x[:, None].expand(-1, 3, -1)).mean(1)


def _raise(*_args: Any) -> Any:
    raise UserError("user code")


def _first_row_nan(z: Tensor) -> Tensor:
    return torch.cat([z[:1] * float("nan"), z[1:]])


CHANGES = {
    "int": lambda z: 3,
    "tuple": lambda z: (z, z),
    "list": lambda z: [z],
    "dict": lambda z: {"z": z},
    "str": lambda z: "z",
    "none": lambda z: None,
    "numpy": lambda z: z.detach().numpy(),
    "fewer_rows": lambda z: z[:-1],
    "no_rows": lambda z: z[:0],
    "more_rows": lambda z: torch.cat([z, z]),
    "three_dimensions": lambda z: z[:, None],
    "one_dimension": lambda z: z[:, 0],
    "one_column": lambda z: z[:, :1],
    "scalar": lambda z: z.sum(),
    "double": lambda z: z.double(),
    "half": lambda z: z.half(),
    "complex": lambda z: z.to(torch.complex64),
    "whole": lambda z: z.long(),
    "nan_row": _first_row_nan,
    "infinite": lambda z: z / 0,
    "zero": lambda z: z * 0,
    "sparse": lambda z: z.to_sparse(),
    "meta": lambda z: z.to("meta"),
    "raises": _raise,
    "detached": lambda z: z.detach(),
    "relu": nn.functional.relu,
    "normalised": lambda z: nn.functional.normalize(z, dim=-1),
    "in_place": lambda z: z.add_(1),
}

MODELS = [
    *variants(same=True, compiled=Wrapper, data_parallel=nn.DataParallel, train=nn.Module.train),
    *(
        Variant(f"returns {name}", lambda _m, _r, change=change: Returns(change))
        for name, change in CHANGES.items()
    ),
    *variants(
        traced=quiet(lambda _m: torch.jit.trace(network(), torch.ones(2, D))),
        scripted=quiet(lambda _m: torch.jit.script(network())),
        dynamic=quiet(
            lambda _m: torch.ao.quantization.quantize_dynamic(network(), {nn.Linear}, torch.qint8)
        ),
        twice=lambda _m: Twice(),
        unused=lambda _m: Unused(lambda z: z),
        no_arguments=lambda _m: NoArguments(),
        half_rows=lambda _m: HalfRows(),
        tokens=lambda _m: OnTokens(),
        lambda_=lambda _m: lambda x: x,
        the_class=lambda _m: nn.Linear,
        identity=lambda _m: nn.Identity(),
        empty=lambda _m: nn.Sequential(),
        no_linear=lambda _m: nn.Sequential(nn.Tanh()),
        lazy=quiet(lambda _m: nn.Sequential(nn.LazyLinear(Z))),
        on_meta=lambda _m: network().to("meta"),
        doubles=lambda _m: network().double(),
        halves=lambda _m: network().half(),
        bfloats=lambda _m: network().bfloat16(),
        frozen=lambda _m: network().requires_grad_(False),
        nan_weights=lambda _m: _filled(float("nan")),
        zero_weights=lambda _m: _filled(0.0),
        huge_weights=lambda _m: _filled(1e30),
        weight_norm=lambda _m: _normed(nn.utils.parametrizations.weight_norm),
        spectral_norm=lambda _m: _normed(nn.utils.parametrizations.spectral_norm),
        batch_norm=lambda _m: nn.Sequential(nn.Linear(D, Z), nn.BatchNorm1d(Z)),
        dropout=lambda _m: nn.Sequential(nn.Linear(D, Z), nn.Dropout()),
        no_bias=lambda _m: nn.Sequential(nn.Linear(D, Z, bias=False)),
        wrong_width=lambda _m: nn.Sequential(nn.Linear(D + 1, Z)),
        conv=lambda _m: nn.Sequential(nn.Unflatten(1, (1, D)), nn.Conv1d(1, Z, D), nn.Flatten()),
        bilinear=lambda _m: nn.Bilinear(D, D, Z),
        embedding=lambda _m: nn.Embedding(10, Z),
        lstm=lambda _m: nn.LSTM(D, Z),
        module_list=lambda _m: nn.ModuleList([nn.Linear(D, Z)]),
        state_dict=lambda m: m.state_dict(),
    ),
    *JUNK,
]


def _filled(value: float) -> nn.Module:
    model = network()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return model


def _normed(norm: Any) -> nn.Module:
    model = network()
    norm(model[-1])
    return model


HEADS = [
    *map(constant, ["2", "0", "1", "3", "no.such", "", "append", b"2", 5, -1, True, [], ["2"], {}]),
    *map(constant, [("2",), object(), print, nn.Linear, torch.ones(2, 3)]),
    *variants(
        foreign=lambda _h: nn.Linear(8, Z),
        slice_of_foreign=lambda _h: network()[1:],
        empty_slice=lambda _h: network()[3:],
    ),
]


def batches(x: Tensor, y: Tensor, size: int = 12) -> list[tuple[Tensor, Tensor]]:
    """The good loader."""
    return [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]


class BrokenIterator:
    """Raises in its second batch."""

    def __init__(self, first: Any) -> None:
        self.first = first

    def __iter__(self) -> Iterator[Any]:
        yield self.first
        raise UserError("user code")


class NoIterator:
    def __iter__(self) -> Any:
        return None


class BrokenLength(list):
    def __len__(self) -> int:
        raise UserError("user code")


def _all(loader: Any) -> tuple[Tensor, Tensor]:
    return tuple(torch.cat(part) for part in zip(*loader, strict=True))  # type: ignore[return-value]


def functions(of: dict[str, Any]) -> list[Variant]:
    """Functions of a user, whatever the good one is."""
    return [Variant(name, lambda _plain, _rng, one=one: one) for name, one in of.items()]


def _relabelled(variant: Variant) -> Variant:
    def make(loader: Any, rng: random.Random) -> Any:
        x, y = loader[0]
        return [(x, variant.make(y, rng)), *loader[1:]]

    return Variant(f"labels {variant.name}", make, variant.same)


def _changed_inputs(variant: Variant) -> Variant:
    def make(loader: Any, rng: random.Random) -> Any:
        x, y = loader[0]
        return [(variant.make(x, rng), y), *loader[1:]]

    return Variant(f"inputs {variant.name}", make)


LOADERS = [
    *variants(
        same=True,
        seed=lambda loader: (batch for batch in loader),
        tuple_of_batches=tuple,
        lists=lambda loader: [list(batch) for batch in loader],
        later_empty=lambda loader: [*loader, (loader[0][0][:0], loader[0][1][:0])],
        empty_first=lambda loader: [(loader[0][0][:0], loader[0][1][:0]), *loader],
        one_batch=lambda loader: [_all(loader)],
        data_loader=lambda loader: DataLoader(TensorDataset(*_all(loader)), batch_size=12),
        broken_length=BrokenLength,
    ),
    *variants(
        only_empty=lambda loader: [(loader[0][0][:0], loader[0][1][:0])],
        no_labels=lambda loader: [x for x, _ in loader],
        singles=lambda loader: [(x,) for x, _ in loader],
        triples=lambda loader: [(x, y, y) for x, y in loader],
        dicts=lambda loader: [{"x": x, "y": y} for x, y in loader],
        inputs_in_dict=lambda loader: [({"input": x}, y) for x, y in loader],
        inputs_in_tuple=lambda loader: [((x,), y) for x, y in loader],
        two_inputs=lambda loader: [((x, x), y) for x, y in loader],
        swapped=lambda loader: [(y, x) for x, y in loader],
        nothing=lambda loader: [None, *loader],
        none_last=lambda loader: [*loader, None],
        none_inputs=lambda loader: [(None, y) for _, y in loader],
        none_labels=lambda loader: [(x, None) for x, _ in loader],
        texts=lambda loader: [(["a"] * len(y), y) for _, y in loader],
        numbers=lambda loader: [(1, 2)],
        single_point=lambda loader: [(loader[0][0][:1], loader[0][1][:1])],
        single_points=lambda loader: [(x[:1], y[:1]) for x, y in loader],
        other_width=lambda loader: [*loader, (torch.ones(2, D + 1), torch.tensor([0, 1]))],
        other_dtype=lambda loader: [loader[0], *((x.double(), y) for x, y in loader[1:])],
        wrong_length=lambda loader: [(x, y[:-1]) for x, y in loader],
        one_class=lambda loader: [(x, y * 0) for x, y in loader],
        one_class_a_batch=lambda loader: [(x, y * 0 + i) for i, (x, y) in enumerate(loader)],
        all_apart=lambda loader: [(_all(loader)[0], torch.arange(N))],
        one_tensor=lambda loader: loader[0][0],
        one_pair=lambda loader: loader[0],
        exhausted=lambda loader: iter(()),
        raises=lambda loader: BrokenIterator(loader[0]),
        no_iterator=lambda loader: NoIterator(),
        strings=lambda loader: "abc",
        data_set=lambda loader: TensorDataset(*_all(loader)),
        numpy_batches=lambda loader: [(x.numpy(), y.numpy()) for x, y in loader],
        numpy_table=lambda loader: np.ones((4, 2)),
    ),
    *map(_relabelled, LABELS),
    *map(_changed_inputs, ARRAYS),
    *JUNK,
]


def mined(*indices: Any) -> Any:
    """A miner that always gives these."""
    return lambda z, y: indices


NO_ROWS = torch.zeros(0, dtype=torch.long)
MINERS = [
    *map(constant, ["all", "batch", "none", "", None, 5, True, [], {}, (), object()]),
    *functions({
        "returns none": lambda z, y: None,
        "returns int": lambda z, y: 3,
        "returns str": lambda z, y: "abcd",
        "returns empty": mined(),
        "returns one": mined(torch.tensor([0])),
        "returns two": mined(torch.tensor([0]), torch.tensor([1])),
        "returns lists": mined([0], [1], [0], [2]),
        "returns triplets": mined(*(torch.tensor([i]) for i in range(3))),
        "returns floats": mined(*[torch.tensor([0.5])] * 4),
        "returns five": mined(*[torch.tensor([0])] * 5),
        "returns out of range": mined(*[torch.tensor([10**6])] * 4),
        "returns negative": mined(*[torch.tensor([-1])] * 4),
        "returns uneven": mined(*(torch.zeros(i, dtype=torch.long) for i in range(4))),
        "returns none mined": mined(*[NO_ROWS] * 4),
        "returns scalars": mined(*[torch.tensor(0)] * 4),
        "returns self pairs": mined(*[torch.zeros(3, dtype=torch.long)] * 4),
        "returns numpy": mined(*(np.array([i]) for i in range(4))),
        "raises": _raise,
        "no arguments": lambda: None,
    }),
]  # fmt: skip

METRICS = [
    *map(constant, [None, 5, "recall", [], {}, object()]),
    *functions({
        "returns none": lambda *a: None,
        "returns str": lambda *a: "x",
        "returns nan": lambda *a: float("nan"),
        "returns infinity": lambda *a: float("inf"),
        "returns tensor": lambda *a: torch.tensor(1.0),
        "returns many": lambda *a: torch.ones(3),
        "returns array": lambda *a: np.ones(3),
        "returns complex": lambda *a: 1j,
        "returns bool": lambda *a: True,
        "raises": _raise,
        "no arguments": lambda: 1.0,
    }),
]  # fmt: skip

LOSSES = [
    *functions({
        "returns none": lambda z, y, *m: None,
        "returns float": lambda z, y, *m: 1.0,
        "returns int tensor": lambda z, y, *m: torch.tensor(1),
        "returns vector": lambda z, y, *m: z.sum(1),
        "returns detached": lambda z, y, *m: z.sum().detach(),
        "returns complex": lambda z, y, *m: z.sum() * 1j,
        "returns nan": lambda z, y, *m: z.sum() * float("nan"),
        "returns infinity": lambda z, y, *m: z.sum() / 0,
        "returns dict": lambda z, y, *m: {"loss": z.sum()},
        "returns str": lambda z, y, *m: "loss",
        "returns zero": lambda z, y, *m: z.sum() * 0,
        "returns huge": lambda z, y, *m: z.square().sum() * 1e30,
        "raises": _raise,
        "no arguments": lambda: torch.tensor(1.0),
    }),
    *JUNK,
]  # fmt: skip

OPTIMIZERS = [
    *variants(
        of_another_model=lambda _o: torch.optim.Adam(network(5).parameters()),
        huge_rate=lambda _o: torch.optim.SGD(network(5).parameters(), lr=1e30),
        the_class=lambda _o: torch.optim.Adam,
        lbfgs=lambda _o: torch.optim.LBFGS(network(5).parameters()),
    ),
    *JUNK,
]

"""A head inside a model: what one forward pass has there, and how the head is found by it.

A head is one sub-module, several in a row, or a new identity at the end. What the model does after
it, nothing or l2 normalisation, is found out by comparing numbers: a normalisation layer and a
functional ``F.normalize`` inside ``forward`` are seen alike.

A model is read as ``x -> h -> z = g(h; theta) -> f``: ``h`` [B, D] enters the head, ``z`` [B, Z] is
the raw embedding, and the model's output ``f`` is either ``z`` itself or ``z / |z|``.

Any number of threads may run one model at once: hooks stand on modules that all of them call, so
each hook looks away unless it is called by the thread that registered it.

A 1x1 convolution as a head: a linear layer on the mean of its map.

With h_p [D] the features at place p of a map, ``z_p = W h_p + b`` is what a 1x1 convolution gives
there, and average pooling after it

    z = 1/P sum_p z_p = W (1/P sum_p h_p) + b

is a linear layer on the mean features (Lin, Chen & Yan 2014, "Network in network"): the same W and
b, so the same Jacobian and posterior. On a map of one place nothing is pooled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.parametrize import type_before_parametrizations

from laplace_metric._utils.display import Shown
from laplace_metric._utils.precision import full_precision
from laplace_metric.errors import HeadError, InputError, NonFiniteError
from laplace_metric.heads._call_errors import check_returned, explain
from laplace_metric.heads._computed import written_out
from laplace_metric.models._calling import (
    Inputs,
    call_model,
    check_module,
    evaluation_mode,
    shown,
)
from laplace_metric.models._reading import as_batch, is_one_item


@dataclass(frozen=True)
class HeadActivations:
    """One forward pass seen at the head: ``features`` h [B, D], ``raw`` z [B, Z], ``output`` f."""

    features: Tensor
    raw: Tensor
    output: Tensor

    @classmethod
    def concatenate(cls, parts: Sequence[HeadActivations]) -> HeadActivations:
        """One pass out of several."""
        names = ("features", "raw", "output")
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in names))

    def contiguous(self) -> HeadActivations:
        """The same numbers in plain rows, whatever they were views of."""
        return HeadActivations(*(x.contiguous() for x in (self.features, self.raw, self.output)))

    def to(self, device: torch.device) -> HeadActivations:
        """The same on a device."""
        return HeadActivations(*(x.to(device) for x in (self.features, self.raw, self.output)))


@dataclass(frozen=True)
class LocatedHead(Shown):
    """A head inside a model, and whether the model l2-normalises after it.

    Parameters
    ----------
    name : str
        Dotted name; "first..last" of modules in a row; "append" for a new one.
    module : nn.Module
        g, whose parameters get the posterior.
    normalized : bool
        Whether the model's output is ``z / |z|``.
    parts : (module, module) or None
        Where h enters and z leaves inside the model; None for an appended head.
    n_outputs : int
        Z.
    source : module or None
        The model's own layers, if ``module`` is a copy of them with computed weights written out
        (``weight_norm`` and the like, see ``_computed``); None: ``module`` is that of the model.
    """

    name: str
    module: nn.Module
    normalized: bool
    parts: tuple[nn.Module, nn.Module] | None
    n_outputs: int
    source: nn.Module | None = None

    @property
    def place(self) -> nn.Module | str:
        """What ``head=`` takes to find this head in its model again."""
        if self.parts is None:
            return APPEND
        return self.module if self.source is None else self.source


@dataclass(frozen=True)
class SeenInputs:
    """A batch of inputs that need not enter the model: what they give at its head is known.

    Wherever a model takes inputs, to fit, to embed, to index, to search, it takes these.

    Parameters
    ----------
    head : LocatedHead
        Of the model that has seen them.
    n : int
        Items.
    look : callable
        What they gave, asked for when it is needed: it may read a file, or run the model then.

    Examples
    --------
    >>> from laplace_metric.heads._locate import capture
    >>> from laplace_metric.heads._locate import locate_head
    >>> model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.ones(3, 4)
    >>> head, activations = locate_head(model, x)
    >>> seen = SeenInputs(head, 3, lambda: activations)
    >>> len(seen), capture(model, head, seen) is activations
    (3, True)
    """

    head: LocatedHead
    n: int
    look: Callable[[], HeadActivations]

    def __len__(self) -> int:
        return self.n

    def at(self, head: str) -> HeadActivations:
        """Return the activations at the head of this name, on the device of the head.

        Raises
        ------
        HeadError
            If it was another head.
        """
        if head != self.head.name:
            raise HeadError(
                f"the inputs were seen at head {self.head.name!r}, not at {head!r}: pass the "
                "inputs themselves."
            )
        seen, parameter = self.look(), next(self.head.module.parameters())
        return seen if seen.features.device == parameter.device else seen.to(parameter.device)


@dataclass(frozen=True)
class HeadCall:
    """One run of a head: what entered it and what left it."""

    name: str
    features: Tensor
    raw: Tensor


def run_recorded(
    model: nn.Module, inputs: Inputs, heads: Mapping[str, tuple[nn.Module, nn.Module]]
) -> tuple[Tensor, list[HeadCall]]:
    """The model's output, and every run of ``heads``: name -> (where h enters, where z leaves).

    One item [D] whose embedding is one vector [Z] is run again as a batch of one.
    """
    entered: dict[str, Tensor] = {}
    calls: list[HeadCall] = []
    with _hooks(heads, entered, calls):
        output = _forward(model, inputs)
    if output.ndim == 1:
        return run_recorded(model, as_batch(inputs), heads)
    return output, calls


_REGISTRATION = threading.Lock()
"""PyTorch numbers hooks with a counter that two threads can read at once."""


@contextmanager
def _hooks(
    heads: Mapping[str, tuple[nn.Module, nn.Module]],
    entered: dict[str, Tensor],
    calls: list[HeadCall],
) -> Iterator[None]:
    """Record what this thread runs."""
    thread = threading.get_ident()

    def enter(name: str, parts: tuple[nn.Module, nn.Module]) -> Any:
        def record(module: nn.Module, args: tuple[Any, ...]) -> None:
            if threading.get_ident() == thread:
                # a linear layer leaves its input alone; a chain may start with an in-place one
                h = _pooled_at(parts, _tensor(name, args[0] if args else None))
                entered[name] = h if isinstance(module, nn.Linear) else h.clone()

        return record

    def leave(name: str, parts: tuple[nn.Module, nn.Module]) -> Any:
        def record(_module: nn.Module, _args: tuple[Any, ...], output: Tensor) -> None:
            if threading.get_ident() == thread:  # later steps may be in place
                z = _pooled_at(parts, _tensor(name, output)).clone()
                calls.append(HeadCall(name, entered[name], z))

        return record

    handles = []
    try:
        with _REGISTRATION:
            for name, parts in heads.items():
                _check_hooked(name, parts)
                handles.append(parts[0].register_forward_pre_hook(enter(name, parts)))
                handles.append(parts[1].register_forward_hook(leave(name, parts)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _check_hooked(name: str, parts: tuple[nn.Module, nn.Module]) -> None:
    if any(isinstance(part, torch.jit.ScriptModule) for part in parts):
        raise HeadError(
            f"head {name!r} is inside a traced or scripted model, which takes no hooks: pass the "
            "model that it was made from, or head='append' for a new linear layer after it."
        )


def _pooled_at(parts: tuple[nn.Module, nn.Module], value: Tensor) -> Tensor:
    """Return the input or output of a head; of maps [B, D, ...] their mean."""
    if value.ndim <= 2:
        return value
    conv = parts[0]
    alone = conv is parts[1] and is_pointwise(conv)
    return averaged(value) if alone and value.ndim == conv.weight.ndim else value


def _tensor(name: str, value: Any) -> Tensor:
    """Return the tensor that enters or leaves a head."""
    if not isinstance(value, Tensor):
        raise HeadError(f"head {name!r} is to map [B, D] to [B, Z]: it has {shown(value)}.")
    return value


def _forward(model: nn.Module, inputs: Inputs) -> Tensor:
    try:
        output = call_model(model, inputs)
    except Exception as error:
        explain(model, inputs, error)
        raise
    usual = isinstance(output, Tensor) and output.ndim == 2 and output.is_floating_point()
    if not usual or output.layout != torch.strided or output.is_meta:
        return check_returned(output, one_item=is_one_item(inputs))
    return output


def capture(model: nn.Module, head: LocatedHead, inputs: Inputs) -> HeadActivations:
    """One forward pass in eval mode; hooks and modes are put back before it returns."""
    with evaluation_mode(model):
        return run_captured(model, head, inputs)


def embeddings_from(model: nn.Module, inputs: Inputs) -> Tensor:
    """Return the model's output [B, Z] without capturing its head; otherwise as ``capture``."""
    with evaluation_mode(model):
        return run_recorded(model, inputs, {})[0]


def run_captured(model: nn.Module, head: LocatedHead, inputs: Inputs) -> HeadActivations:
    """One forward pass in the model's present modes, with gradients where they are enabled.

    Of ``SeenInputs`` there is none.
    """
    if isinstance(inputs, SeenInputs):
        return inputs.at(head.name)
    if head.parts is None:
        return appended_activations(head.module, run_recorded(model, inputs, {})[0])
    output, calls = run_recorded(model, inputs, {head.name: head.parts})
    return captured(calls, output, head.name)


def appended_activations(module: nn.Module, output: Tensor) -> HeadActivations:
    """Apply an appended head to the model's output.

    Raises
    ------
    HeadError
        If it is not as wide as the head.
    """
    weight = next(module.parameters())
    if output.ndim != 2 or output.shape[1] != weight.shape[1]:
        raise HeadError(
            f"the model gives {shown(output)}, the appended head takes [B, {weight.shape[1]}]: "
            "pass the model that was fitted."
        )
    h = output.to(weight)
    with full_precision():
        z = module(h)
    return HeadActivations(h, z, z)


def captured(calls: Sequence[HeadCall], output: Tensor, name: str) -> HeadActivations:
    """The one run of a head [B, D] -> [B, Z], checked.

    Raises
    ------
    HeadError
        If it did not run once, or does not give the model's [B, Z].
    """
    if len(calls) != 1:
        raise HeadError(f"head {name!r} ran {len(calls)} times in one forward pass, not once.")
    features, raw = calls[0].features, calls[0].raw
    if features.ndim != 2 or len(features) != len(raw) or raw.shape != output.shape:
        raise HeadError(
            f"head {name!r} maps {tuple(features.shape)} to {tuple(raw.shape)} and the model "
            f"returns {tuple(output.shape)}: the head must map [B, D] to the returned [B, Z]. "
            "Name another layer with head=..., or pass head='append' for a new linear layer after "
            "the model."
        )
    return HeadActivations(features, raw, output)


CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Of exactly these types: subclasses may change the weights before they are used."""
Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


class PointwiseHead(nn.Module):
    """``h -> W h + b`` of a 1x1 convolution, whose parameters it shares.

    Parameters
    ----------
    conv : nn.Conv1d, nn.Conv2d or nn.Conv3d
        One that ``is_pointwise``.

    Examples
    --------
    >>> import torch
    >>> head, maps = PointwiseHead(nn.Conv2d(4, 3, 1)), torch.randn(2, 4, 5, 6)
    >>> torch.allclose(head(averaged(maps)), averaged(head.conv(maps)), atol=1e-6)
    True
    """

    def __init__(self, conv: Convolution) -> None:
        super().__init__()
        self.conv = conv

    @property
    def weight(self) -> Float[Tensor, "Z D"]:
        """W."""
        return self.conv.weight.flatten(1)

    @property
    def bias(self) -> Float[Tensor, " Z"] | None:
        """The bias b, if it has one."""
        return self.conv.bias

    def forward(self, features: Float[Tensor, "B D"]) -> Float[Tensor, "B Z"]:
        """Raw embeddings of mean features."""
        return nn.functional.linear(features, self.weight, self.bias)


def is_pointwise(module: nn.Module) -> TypeGuard[Convolution]:
    """Return whether a module is a convolution that sees one place at a time, and every place.

    Examples
    --------
    >>> is_pointwise(nn.Conv2d(4, 3, 1)), is_pointwise(nn.Conv2d(4, 3, 3, padding=1))
    (True, False)
    >>> is_pointwise(nn.Conv2d(4, 4, 1, groups=2)), is_pointwise(nn.Conv2d(4, 3, 1, stride=2))
    (False, False)
    """
    if type_before_parametrizations(module) not in CONVOLUTIONS:
        return False
    assert isinstance(module, CONVOLUTIONS)
    single = {*module.kernel_size, *module.stride} == {1} and module.groups == 1
    return single and module.padding in ("same", "valid", (0,) * len(module.kernel_size))


def averaged(maps: Float[Tensor, "B D *places"]) -> Float[Tensor, "B D"]:
    """The mean of each map over its places.

    Examples
    --------
    >>> import torch
    >>> averaged(torch.tensor([[[[1.0, 3.0]]]]))
    tensor([[2.]])
    """
    return maps.flatten(2).mean(2)


def is_normalized(raw: Tensor, output: Tensor, name: str) -> bool:
    """Return whether the output f [B, Z] is ``z / |z|``, not the raw embedding z.

    Parameters
    ----------
    name : str
        Of the head, for the error.

    Raises
    ------
    HeadError
        If it is neither; the message says what was seen.
    NonFiniteError
        If the output holds NaN or infinity.

    Examples
    --------
    >>> z = torch.tensor([[3.0, 4.0]])
    >>> is_normalized(z, z / 5, "fc"), is_normalized(z, z, "fc")
    (True, False)
    """
    z, f = raw, output
    if not bool(f.isfinite().all()):
        raise NonFiniteError(
            "the model gives NaN or infinite embeddings on the first batch: check its inputs and "
            "its weights."
        )
    unit = nn.functional.normalize(z.double(), dim=-1)
    eps = max(torch.finfo(z.dtype).eps, torch.finfo(f.dtype).eps)
    tolerance = min(50 * eps, max(4 * eps, 1e-5))  # half precision has no room for 50
    gaps = [_relative_gap(f, z), _relative_gap(f, unit)]
    if gaps[0] <= tolerance:
        return False
    if gaps[1] <= tolerance:
        return True
    raise HeadError(
        f"the model's output is neither the output z of head {name!r} nor z / |z|: relative "
        f"differences {gaps[0]:.2g} and {gaps[1]:.2g} on the first batch{_likely_cause(z, f)}. "
        f"{_layer_around(name)} with head=..., drop what follows it, or pass head='append' for a "
        "new linear layer after the model."
    )


ADAPTERS = ("lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B", "base_layer")
"""Modules of low-rank adapters inside the layer that they change."""


def _layer_around(name: str) -> str:
    """What to name: of an adapter, the layer that it changes."""
    parts = name.split(".")
    inside = [i for i, part in enumerate(parts) if part in ADAPTERS]
    if not inside or not inside[0]:
        return "Name the layer that produces the embedding"
    return (
        "It belongs to an adapter (LoRA): merge the adapter (merge_and_unload()), or name the "
        f"whole layer, head={'.'.join(parts[: inside[0]])!r}. Otherwise name another layer"
    )


def _relative_gap(seen: Tensor, expected: Tensor) -> float:
    scale = expected.double().abs().max().clamp_min(torch.finfo(torch.float64).tiny)
    return float((seen.double() - expected.double()).abs().max() / scale)


def _likely_cause(z: Tensor, f: Tensor) -> str:
    z, f = z.double(), f.double()
    if torch.equal(f, z.clamp_min(0)):
        return " (it looks like relu(z))"
    for expected, words in ((z, "z"), (nn.functional.normalize(z, dim=-1), "z / |z|")):
        factor = (f * expected).sum() / (expected * expected).sum()
        if torch.allclose(f, factor * expected, rtol=1e-3, atol=1e-6):
            return f" (it looks like {float(factor):.4g} times {words})"
    return ""


APPEND = "append"
AFTER_POINTWISE = (
    "Of a 1x1 convolution z is the mean over its map: nothing but average pooling, flattening a "
    "map of one place and l2 normalisation may follow it."
)


def locate_head(
    model: nn.Module, inputs: Inputs, head: nn.Module | str | None = None
) -> tuple[LocatedHead, HeadActivations]:
    """Find the head and what follows it, by one forward pass on ``inputs``, which is returned too.

    Parameters
    ----------
    head : module, dotted name, "append" or None
        A sub-module [B, D] -> [B, Z]; an ``nn.Sequential`` of sub-modules that run one after the
        other, such as ``model[-3:]``; "append" adds an identity-initialised linear layer; None
        takes the last ``nn.Linear`` that runs, or the last 1x1 convolution, averaged over its map.

    Raises
    ------
    HeadError
        If there is no such layer, or the output is neither ``z`` nor ``z / |z|``.
    InputError
        If the inputs have no rows.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> head, activations = locate_head(model, torch.ones(3, 4))
    >>> head.name, head.n_outputs, activations.features.shape
    ('2', 2, torch.Size([3, 8]))
    """
    if isinstance(inputs, SeenInputs):
        return inputs.head, inputs.at(head if isinstance(head, str) else inputs.head.name)
    if head == APPEND and APPEND not in dict(model.named_modules()):
        return _appended(model, inputs)
    candidates = _candidates(model, head)
    ends = {name: parts for name, (_, parts) in candidates.items()}
    with evaluation_mode(model):
        output, calls = run_recorded(model, inputs, ends)
        if not calls:
            raise HeadError(
                f"none of the layers {sorted(candidates)} ran as a module in the forward pass: "
                f"pass head={APPEND!r} for an identity-initialised linear layer after the model."
            )
        return _last_that_fits(candidates, calls, output)


def _last_that_fits(
    candidates: dict[str, Ends], calls: list[HeadCall], output: Tensor
) -> tuple[LocatedHead, HeadActivations]:
    """The last layer that ran; the last 1x1 convolution where no linear layer gives the output."""
    convolutions = [c for c in calls if isinstance(candidates[c.name][0], PointwiseHead)]
    linear = [c for c in calls if not isinstance(candidates[c.name][0], PointwiseHead)]
    try:
        return _located(candidates, linear or convolutions, output)
    except HeadError as error:
        if not convolutions:
            raise
        if not linear:
            raise HeadError(f"{error} {AFTER_POINTWISE}") from error
        try:
            return _located(candidates, convolutions, output)
        except HeadError:
            raise error from None


def _located(
    candidates: dict[str, Ends], calls: list[HeadCall], output: Tensor
) -> tuple[LocatedHead, HeadActivations]:
    """The layer of the last of these calls, checked."""
    name = calls[-1].name
    activations = captured([call for call in calls if call.name == name], output, name)
    own, parts = candidates[name]
    copied = written_out(name, own)
    module, source = (own, None) if copied is None else (copied, own)
    _check_is_whole(module, activations, name)
    normalized = is_normalized(activations.raw, activations.output, name)
    n_outputs = activations.raw.shape[1]
    return LocatedHead(name, module, normalized, parts, n_outputs, source), activations


def find_head(model: nn.Module, inputs: Inputs, head: nn.Module | str | None = None) -> LocatedHead:
    """The head alone; see ``locate_head``."""
    return locate_head(check_module(model), inputs, head)[0]


Ends = tuple[nn.Module, tuple[nn.Module, nn.Module]]
"""A head, and the modules where h enters and z leaves."""


def _candidates(model: nn.Module, head: nn.Module | str | None) -> dict[str, Ends]:
    modules = dict(model.named_modules())
    if head is None:
        ends = {name: sub_module(module) for name, module in modules.items()}
        known = (nn.Linear, PointwiseHead)
        found = {name: end for name, end in ends.items() if isinstance(end[0], known)}
        if not found:
            raise HeadError(
                f"{type(model).__name__} has no nn.Linear and no 1x1 convolution, so there is no "
                "head to put a posterior on: pass head='append' for an identity-initialised linear "
                "layer after it."
            )
        return found
    for name, module in modules.items():
        if head == name or head is module or _is_of(head, module):
            _check_trainable(name, module)
            return {name: sub_module(module)}
    return _row_of_modules(modules, head)


def sub_module(module: nn.Module) -> Ends:
    """One sub-module as a head."""
    if is_pointwise(module):
        return PointwiseHead(module), (module, module)
    return module, (module, module)


def _is_of(head: nn.Module | str | None, module: nn.Module) -> bool:
    """Return whether a head is that of an earlier fit, around this convolution."""
    return isinstance(head, PointwiseHead) and head.conv is module


def _row_of_modules(modules: dict[str, nn.Module], head: nn.Module | str) -> dict[str, Ends]:
    """A sequential whose children are modules of the model, such as ``model[-3:]``."""
    names = {id(module): name for name, module in modules.items()}
    children = list(head) if isinstance(head, nn.Sequential) else []
    if not children or any(id(child) not in names for child in children):
        shown = head if isinstance(head, str) else type(head).__name__
        raise HeadError(
            f"head={shown!r} is not a layer of the model: {sorted(filter(None, modules))}."
        )
    name = f"{names[id(children[0])]}..{names[id(children[-1])]}"
    assert isinstance(head, nn.Module)
    _check_trainable(name, head)
    return {name: (head, (children[0], children[-1]))}


def _check_trainable(name: str, module: nn.Module) -> None:
    if next(module.parameters(), None) is None:
        raise HeadError(
            f"head {name!r} ({type(module).__name__}) has no parameters to be unsure of."
        )


def _appended(model: nn.Module, inputs: Inputs) -> tuple[LocatedHead, HeadActivations]:
    """A new identity-initialised linear layer after the model's output."""
    with evaluation_mode(model):
        output = run_recorded(model, inputs, {})[0]
        module = identity_head(output.shape[1], output)
        activations = appended_activations(module, output)
    return LocatedHead(APPEND, module, False, None, output.shape[1]), activations


def identity_head(size: int, like: Tensor) -> nn.Linear:
    """``z = I h`` without bias, in the dtype (float32 at least) and on the device of ``like``."""
    dtype = like.dtype if like.dtype == torch.float64 else torch.float32
    layer = nn.Linear(size, size, bias=False, device="meta")  # draws no random numbers
    layer.weight = nn.Parameter(torch.eye(size, dtype=dtype, device=like.device))
    return layer


def is_identity(module: nn.Module) -> bool:
    """Return whether a head gives what enters it, as an appended one does."""
    if not isinstance(module, nn.Linear) or module.bias is not None:
        return False
    weight = module.weight
    return len(weight) == weight.shape[1] and torch.equal(weight, torch.eye(len(weight)).to(weight))


def _check_is_whole(module: nn.Module, activations: HeadActivations, name: str) -> None:
    """The head alone, on what enters it, must give what leaves it."""
    if not len(activations.raw):
        raise InputError("the first batch has no rows to find the head by: leave it out.")
    alone = module(activations.features)
    scale = activations.raw.abs().max().clamp_min(torch.finfo(activations.raw.dtype).tiny)
    tolerance = max(1e-4, 4 * torch.finfo(activations.raw.dtype).eps)
    same = alone.shape == activations.raw.shape
    if not same or bool(((alone - activations.raw).abs().max() / scale) > tolerance):
        raise HeadError(
            f"head {name!r} run by itself does not give what leaves it inside the model: something "
            "else happens between its modules. Name one sub-module that holds all of it."
        )

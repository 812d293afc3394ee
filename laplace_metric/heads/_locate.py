"""Identity of a head: enough to find it again in a model and to recognise it.

Locate the head of an embedder: one sub-module, several in a row, or a new identity at the end.

What the model does after it, nothing or l2 normalisation, is found out by comparing numbers: a
normalisation layer and a functional ``F.normalize`` inside ``forward`` are seen alike.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric._utils.precision import at_least_float32
from laplace_metric.errors import (
    FileFormatError,
    HeadError,
    InputError,
    NonFiniteError,
    WeightsChangedError,
)
from laplace_metric.heads._capture import (
    CONVOLUTIONS,
    HeadActivations,
    HeadCall,
    LocatedHead,
    PointwiseHead,
    SeenInputs,
    appended_activations,
    captured,
    is_pointwise,
    run_recorded,
)
from laplace_metric.io import digest
from laplace_metric.models._calling import Inputs, check_module, evaluation_mode

HeadSpec = dict[str, Any]
"""JSON values."""


def head_spec(head: LocatedHead) -> HeadSpec:
    """Name, shapes and a fingerprint of the weights."""
    parameters = list(head.module.parameters())
    return {
        "name": head.name,
        "normalized": head.normalized,
        "n_outputs": head.n_outputs,
        "shapes": [list(p.shape) for p in parameters],
        "dtype": str(parameters[0].dtype),
        "sha256": digest("", parameters),
    }


def head_from_spec(spec: HeadSpec, model: nn.Module) -> LocatedHead:
    """The head of ``model`` that ``head_spec`` described.

    Raises
    ------
    FileFormatError
        If the model lacks it, or its head differs.
    """
    name = spec["name"]
    module_and_parts = _named_or_appended(name, spec, model)
    if module_and_parts is None:
        raise FileFormatError(f"the posterior is for a head {name!r}, which model lacks.")
    module, parts = module_and_parts
    head = LocatedHead(name, module, spec["normalized"], parts, spec["n_outputs"])
    actual = head_spec(head)
    for key, value in spec.items():
        if actual[key] != value:
            hint = (
                " (the weights differ: load the trained ones into the model, or fit again)"
                if key == "sha256"
                else ""
            )
            raise FileFormatError(
                f"head {name!r} has {key} {actual[key]!r}, the posterior was fitted for "
                f"{value!r}{hint}."
            )
    return head


def _named_or_appended(
    name: str, spec: HeadSpec, model: nn.Module
) -> tuple[nn.Module, tuple[nn.Module, nn.Module] | None] | None:
    named = named_head(model, name)
    if named is None and name == APPEND:
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        dtype = getattr(torch, spec["dtype"].removeprefix("torch."))
        like = torch.empty(0, dtype=dtype, device=device)
        return identity_head(spec["n_outputs"], like), None
    has_parameters = named is not None and next(named[0].parameters(), None) is not None
    return named if has_parameters else None


def named_head(model: nn.Module, name: str) -> Ends | None:
    """(module, its ends) of a name that ``locate_head`` gave; None without such a head."""
    modules = dict(model.named_modules())
    names = name.split("..")
    if len(names) == 1:
        return sub_module(modules[name]) if name in modules else None
    order = [n for n, m in modules.items() if not any(m.children())]
    if not set(names) <= set(order):
        return None
    row = order[order.index(names[0]) : order.index(names[1]) + 1]
    chain = nn.Sequential(*(modules[n] for n in row))
    return chain, (modules[row[0]], modules[row[-1]])


# What has to hold at each call: the head has the weights of the fit, and every row is a number.


SAMPLE = 2**14
"""Weights of a head, evenly spaced, whose values are compared at each call."""
SHORTEST = 1e-12
"""Length below which ``nn.functional.normalize`` gives no unit vector."""


class FittedWeights:
    """Notices that a head no longer has the weights that a posterior was fitted to.

    Of each tensor its identity, address, version counter, type and device are compared, and the
    values of a sample: fused optimisers and what is written through ``tensor.data`` move no
    counter. All values are compared where one of these differs; values that are the same pass.

    Parameters
    ----------
    head : LocatedHead
    mean : Tensor [P]
        Of the posterior.
    """

    def __init__(self, head: LocatedHead, mean: Float[Tensor, " P"]) -> None:
        self.head, self.mean = head, mean
        self._buffers = [buffer.detach().clone() for buffer in head.module.buffers()]
        self._stamp: list[Any] | None = None
        self._sample = mean

    def check(self, *, values: bool = False) -> None:
        """Compare what is cheap to compare, or all values.

        Raises
        ------
        WeightsChangedError
            For other weights, another type or another device.
        """
        stamp = [_stamp(tensor) for tensor in self._tensors()]
        if values or stamp != self._stamp or not torch.equal(self._sampled(), self._sample):
            self._check_values()
            self._stamp, self._sample = stamp, self._sampled()

    def _sampled(self) -> Tensor:
        step = 1 + (len(self.mean) - 1) // SAMPLE
        return torch.cat([p.detach().flatten()[::step] for p in self.head.module.parameters()])

    def _tensors(self) -> list[Tensor]:
        return [*self.head.module.parameters(), *self.head.module.buffers()]

    def _check_values(self) -> None:
        parts = [at_least_float32(p.detach()).flatten() for p in self.head.module.parameters()]
        devices = {str(part.device) for part in parts}
        if devices != {str(self.mean.device)}:
            raise self._error(f"they were moved from {self.mean.device} to {', '.join(devices)}")
        theta = torch.cat(parts)
        if theta.dtype != self.mean.dtype:
            raise self._error(f"they were {self.mean.dtype} and are {theta.dtype}")
        if theta.shape != self.mean.shape:
            raise self._error(f"they were {len(self.mean)} numbers and are {len(theta)}")
        if not torch.equal(theta, self.mean):
            gaps = (theta - self.mean).abs()
            n_changed = int((gaps != 0).sum())
            largest = float(gaps.max())
            raise self._error(f"{n_changed} of {len(theta)} differ, by up to {largest:.2g}")
        buffers = list(self.head.module.buffers())
        if len(buffers) != len(self._buffers) or not all(map(torch.equal, buffers, self._buffers)):
            raise self._error("its buffers (running statistics) differ")

    def _error(self, what: str) -> WeightsChangedError:
        return WeightsChangedError(
            f"the weights of head {self.head.name!r} changed after the fit: {what}. The posterior "
            "belongs to the old ones: fit again, or put those back (type and device, too)."
        )


def _stamp(tensor: Tensor) -> tuple[Any, ...]:
    version = 0 if tensor.is_inference() else tensor._version
    return id(tensor), tensor.data_ptr(), version, tensor.dtype, tensor.device


def check_rows(raw: Float[Tensor, "B Z"], *results: Tensor, spherical: bool) -> None:
    """Check that the raw embeddings z [B, Z] and what was computed from them, [B] each, are finite.

    Raises
    ------
    NonFiniteError
        For NaN or infinity; it counts the rows.
    InputError
        On the sphere, for embeddings without a direction.
    """
    sizes = raw.square().sum(1) if spherical else raw.abs().amax(1)
    fine = sizes < torch.inf  # not of NaN
    if spherical:
        fine &= sizes >= SHORTEST**2
    for result in results:
        fine &= result.isfinite()
    if not bool(fine.all()):
        _refuse(raw, spherical)


def _refuse(raw: Tensor, spherical: bool) -> None:
    n, broken = len(raw), int((~raw.isfinite()).any(1).sum())
    if broken:
        raise NonFiniteError(
            f"{broken} of {n} embeddings of a batch hold NaN or infinity: check those inputs."
        )
    lengths = raw.double().norm(dim=1)
    zero, short = int((lengths == 0).sum()), int((lengths < SHORTEST).sum())
    if spherical and zero:
        raise InputError(
            f"{zero} of {n} embeddings of a batch are all zeros, and what is exactly zero has "
            "no direction: leave those inputs out."
        )
    if spherical and short:
        raise InputError(
            f"{short} of {n} embeddings of a batch are shorter than {SHORTEST:g}, the shortest "
            f"{float(lengths.min()):.2g}: their direction is rounding. Scale the inputs up."
        )
    raise NonFiniteError(
        f"uncertainties of a batch of {n} overflow {raw.dtype}: embeddings are up to "
        f"{float(lengths.max()):.2g} long. Scale the inputs down, or use float64."
    )


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
        "Name the layer that produces the embedding with head=..., drop what follows it, or pass "
        "head='append' for a new linear layer after the model."
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
    check_module(model)
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
            f"none of the layers {sorted(candidates)} ran as a module in the forward pass: pass "
            f"head={APPEND!r} for an identity-initialised linear layer after the model."
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
    module, parts = candidates[name]
    _check_is_whole(module, activations, name)
    normalized = is_normalized(activations.raw, activations.output, name)
    return LocatedHead(name, module, normalized, parts, activations.raw.shape[1]), activations


def find_head(model: nn.Module, inputs: Inputs, head: nn.Module | str | None = None) -> LocatedHead:
    """The head alone; see ``locate_head``."""
    return locate_head(model, inputs, head)[0]


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
    if type(module) in CONVOLUTIONS and is_pointwise(module):
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
    layer = nn.utils.skip_init(nn.Linear, size, size, bias=False, dtype=dtype, device=like.device)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(size))
    return layer


def _check_is_whole(module: nn.Module, activations: HeadActivations, name: str) -> None:
    """The head alone, on what enters it, must give what leaves it."""
    if not len(activations.raw):
        raise InputError("the first batch has no rows to find the head by: leave it out.")
    with evaluation_mode(module):
        alone = module(activations.features)
    scale = activations.raw.abs().max().clamp_min(torch.finfo(activations.raw.dtype).tiny)
    tolerance = max(1e-4, 4 * torch.finfo(activations.raw.dtype).eps)
    same = alone.shape == activations.raw.shape
    if not same or bool(((alone - activations.raw).abs().max() / scale) > tolerance):
        raise HeadError(
            f"head {name!r} run by itself does not give what leaves it inside the model: something "
            "else happens between its modules. Name one sub-module that holds all of it."
        )

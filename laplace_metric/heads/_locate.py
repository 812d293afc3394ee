"""Find the head of a model, by one forward pass.

A head is one sub-module, several in a row, or a new identity at the end. The model may do nothing
after it, or l2-normalise.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric.errors import HeadError, InputError
from laplace_metric.heads._capture import SeenInputs, appended_activations, captured
from laplace_metric.heads._computed import written_out
from laplace_metric.heads._located import APPEND, HeadActivations, LocatedHead
from laplace_metric.heads._normalized import is_normalized
from laplace_metric.heads._pointwise import PointwiseHead, is_pointwise
from laplace_metric.heads._recording import HeadCall, run_recorded
from laplace_metric.inputs._batches import ModelInput
from laplace_metric.inputs._shown import shown
from laplace_metric.models._evaluation_mode import evaluation_mode
from laplace_metric.models._modules import check_module

AFTER_POINTWISE = (
    "Of a 1x1 convolution z is the mean over its map: nothing but average pooling, flattening a "
    "map of one place and l2 normalisation may follow it."
)


def locate_head(
    model: nn.Module, inputs: ModelInput, head: nn.Module | str | None = None
) -> tuple[LocatedHead, HeadActivations]:
    """Find the head and what follows it, by one forward pass on ``inputs``, which is returned too.

    Parameters
    ----------
    model : nn.Module
        The model, in any mode.
    inputs : Tensor, or what the model takes
        A batch of inputs to run the model on.
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
    check_head(head)
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
    """Return the last layer that ran, or the last 1x1 convolution if no linear one fits."""
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
    """Return the layer of the last of these calls, checked."""
    name = calls[-1].name
    activations = captured([call for call in calls if call.name == name], output, name)
    own, parts = candidates[name]
    copied = written_out(name, own)
    module, source = (own, None) if copied is None else (copied, own)
    _check_is_whole(module, activations, name)
    normalized = is_normalized(activations.raw, activations.output, name)
    n_outputs = activations.raw.shape[1]
    return LocatedHead(name, module, normalized, parts, n_outputs, source), activations


def find_head(
    model: nn.Module, inputs: ModelInput, head: nn.Module | str | None = None
) -> LocatedHead:
    """Return the head alone; see ``locate_head``."""
    return locate_head(check_module(model), inputs, head)[0]


Ends = tuple[nn.Module, tuple[nn.Module, nn.Module]]
"""A head, and the modules where h enters and z leaves."""


def check_head(head: Any) -> nn.Module | str | None:
    """Return the head itself, or raise ``HeadError`` for what names none, such as data."""
    if head is None or isinstance(head, (nn.Module, str)):
        return head
    given = f"={head!r}" if isinstance(head, (int, float)) else f" is {shown(head)}"
    raise HeadError(
        f"head{given}: pass the name of a layer of the model, such as '2', the layer itself, "
        "'append' or None. Data go to fit: LaplaceEmbedder(model).fit(inputs, labels)."
    )


def _candidates(model: nn.Module, head: nn.Module | str | None) -> dict[str, Ends]:
    modules = dict(model.named_modules())
    if head is None:
        ends = {name: sub_module(module) for name, module in modules.items()}
        known = (nn.Linear, PointwiseHead)
        found = {name: end for name, end in ends.items() if isinstance(end[0], known)}
        if not found:
            raise HeadError(
                f"{type(model).__name__} {_without_layers(model)}, so there is no "
                "head to put a posterior on: pass head='append' for an identity-initialised linear "
                "layer after it."
            )
        return found
    for name, module in modules.items():
        if head == name or head is module or _is_of(head, module):
            _check_trainable(name, module)
            return {name: sub_module(module)}
    return _row_of_modules(modules, head)


def _without_layers(model: nn.Module) -> str:
    """Return why a model has no layer that can be a head."""
    kinds = {type(part).__name__: type(part).__module__ for part in model.modules()}
    quantised = [kind for kind, module in kinds.items() if "quantized" in module]
    if isinstance(model, torch.jit.ScriptModule):
        return (
            "is a scripted or traced model (torch.jit), whose layers are hidden: pass the model "
            "that it was made from. As it is, it has no layer"
        )
    if isinstance(model, torch.fx.GraphModule):
        return (
            "is a graph (torch.export, torch.fx), whose layers are functions: pass the model that "
            "it was made from. As it is, it has no layer"
        )
    if quantised:
        return (
            f"is quantised ({', '.join(sorted(quantised))}), so that its layers have no floating "
            "weights: pass the model of before. As it is, it has no layer"
        )
    return "has no nn.Linear and no 1x1 convolution"


def sub_module(module: nn.Module) -> Ends:
    """Return one sub-module as a head."""
    if is_pointwise(module):
        return PointwiseHead(module), (module, module)
    return module, (module, module)


def _is_of(head: nn.Module | str | None, module: nn.Module) -> bool:
    """Return whether a head is that of an earlier fit, around this convolution."""
    return isinstance(head, PointwiseHead) and head.conv is module


def _row_of_modules(modules: dict[str, nn.Module], head: nn.Module | str) -> dict[str, Ends]:
    """Return a sequential whose children are modules of the model, such as ``model[-3:]``."""
    names = {id(module): name for name, module in modules.items()}
    children = list(head) if isinstance(head, nn.Sequential) else []
    if not children or any(id(child) not in names for child in children):
        named = head if isinstance(head, str) else type(head).__name__
        raise HeadError(
            f"head={named!r} is not a layer of the model: {sorted(filter(None, modules))}."
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


def _appended(model: nn.Module, inputs: ModelInput) -> tuple[LocatedHead, HeadActivations]:
    """Return a new identity-initialised linear layer after the model's output."""
    with evaluation_mode(model):
        output = run_recorded(model, inputs, {})[0]
        module = identity_head(output.shape[1], output)
        activations = appended_activations(module, output)
    return LocatedHead(APPEND, module, False, None, output.shape[1]), activations


def identity_head(size: int, like: Tensor) -> nn.Linear:
    """Return ``z = I h`` without bias, in the dtype and on the device of ``like``."""
    dtype = like.dtype if like.dtype == torch.float64 else torch.float32
    return linear_layer(torch.eye(size, dtype=dtype, device=like.device), None)


def linear_layer(weight: Float[Tensor, "Z D"], bias: Float[Tensor, " Z"] | None) -> nn.Linear:
    """Return ``z = W h + b`` as a layer; no random numbers are drawn."""
    layer = nn.Linear(weight.shape[1], len(weight), bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight)
    if bias is not None:
        layer.bias = nn.Parameter(bias)
    return layer


def is_identity(module: nn.Module) -> bool:
    """Return whether a head gives what enters it, as an appended one does."""
    if not isinstance(module, nn.Linear) or module.bias is not None:
        return False
    weight = module.weight
    return len(weight) == weight.shape[1] and torch.equal(weight, torch.eye(len(weight)).to(weight))


def _check_is_whole(module: nn.Module, activations: HeadActivations, name: str) -> None:
    """Check that the head alone turns what enters it into what leaves it."""
    if not len(activations.raw):
        raise InputError("the first batch has no rows to find the head by: leave it out.")
    h, z = activations.features, activations.raw
    # autocast inside of the model gives the head inputs, or outputs, of another type than its own
    alone = module(h.to(next(module.parameters())))
    scale = z.abs().max().clamp_min(torch.finfo(z.dtype).tiny)
    tolerance = max(1e-4, *(4 * torch.finfo(x.dtype).eps for x in (h, z)))
    if alone.shape != z.shape or bool(((alone - z).abs().max() / scale) > tolerance):
        raise HeadError(
            f"head {name!r} run by itself does not give what leaves it inside the model: something "
            "else happens between its modules. Name one sub-module that holds all of it."
        )

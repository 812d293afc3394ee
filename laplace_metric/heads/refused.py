"""Why a model could not be called with its inputs, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from laplace_metric.batches import Inputs
from laplace_metric.errors import DtypeError, InputError


def explain(model: nn.Module, inputs: Inputs, error: Exception) -> None:
    """Raise an error that says what to do, where that is known.

    Raises
    ------
    DtypeError
        If a floating input has a dtype that no weight has.
    InputError
        If the model takes no strings, or not these keywords.
    """
    if isinstance(error, RuntimeError):
        _explain_dtypes(model, inputs, error)
    elif isinstance(error, (TypeError, AttributeError)):
        _explain_arguments(model, inputs, error)


def _explain_arguments(model: nn.Module, inputs: Inputs, error: Exception) -> None:
    if isinstance(inputs, Mapping):
        how = f"the keywords {sorted(map(str, inputs))} as model(**inputs)"
    elif isinstance(inputs, (tuple, list)) and all(isinstance(x, str) for x in inputs):
        how = f"a {type(inputs).__name__} of strings"
    else:
        return
    raise InputError(
        f"{type(model).__name__} could not be called with {how} ({type(error).__name__}: {error}). "
        "A SentenceTransformer takes strings through adapters.Sentences(model); a model of "
        "transformers takes what its tokenizer gives with return_tensors='pt'."
    ) from error


def _explain_dtypes(model: nn.Module, inputs: Inputs, error: RuntimeError) -> None:
    weights = {p.dtype for p in model.parameters()}
    given = {x.dtype for x in _tensors(inputs) if x.is_floating_point()}
    if weights and not given <= weights:
        shown = [", ".join(sorted(map(str, kinds))) for kinds in (given, weights)]
        raise DtypeError(
            f"the forward pass failed: inputs are {shown[0]}, the model's weights {shown[1]}. Cast "
            "one of them, e.g. model.float() or inputs.to(torch.float32)."
        ) from error


def _tensors(inputs: Any) -> Iterator[Tensor]:
    if isinstance(inputs, Tensor):
        yield inputs
    elif isinstance(inputs, Mapping):
        yield from _tensors(list(inputs.values()))
    elif isinstance(inputs, (tuple, list)):
        for value in inputs:
            yield from _tensors(value)

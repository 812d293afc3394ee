"""Why a model could not be called with its inputs, in words.

What a model returned, in words, and how to make one tensor [B, Z] of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from laplace_metric._utils.validation import check_floating
from laplace_metric.errors import DtypeError, HeadError, InputError
from laplace_metric.models._calling import Inputs, shown


def explain(model: nn.Module, inputs: Inputs, error: Exception) -> None:
    """Raise an error that says what to do, where that is known.

    Raises
    ------
    DtypeError
        If a floating input has a dtype that no weight has.
    InputError
        If the model takes no strings, or not these keywords, or torch says that sizes of layer and
        inputs do not fit.
    """
    kind = type(model).__name__
    if isinstance(error, (TypeError, AttributeError)):
        if isinstance(inputs, Mapping):
            how = f"the keywords {sorted(map(str, inputs))} as model(**inputs)"
        elif isinstance(inputs, (tuple, list)) and all(isinstance(x, str) for x in inputs):
            how = f"a {type(inputs).__name__} of strings"
        else:
            return
        raise InputError(
            f"{kind} could not be called with {how} ({type(error).__name__}: {error}). "
            "A SentenceTransformer takes strings through models.Sentences(model); a model of "
            "transformers takes what its tokenizer gives with return_tensors='pt'."
        ) from error
    if not isinstance(error, RuntimeError):
        return
    weights = {p.dtype for p in model.parameters()}
    input_dtypes = {x.dtype for x in _tensors(inputs) if x.is_floating_point()}
    if weights and not input_dtypes <= weights:
        named = [", ".join(sorted(map(str, kinds))) for kinds in (input_dtypes, weights)]
        raise DtypeError(
            f"the forward pass failed: inputs are {named[0]}, the model's weights {named[1]}. Cast "
            "one of them, e.g. model.float() or inputs.to(torch.float32)."
        ) from error
    if "shapes cannot be multiplied" in str(error) or "size mismatch" in str(error):
        sizes = ", ".join(str(list(x.shape)) for x in _tensors(inputs))
        raise InputError(
            f"{kind} cannot take inputs {sizes or shown(inputs)} ({error}): pass "
            "inputs of the size that its first layer has, in the shape [B, ...]."
        ) from error


def _tensors(inputs: Any) -> Iterator[Tensor]:
    if isinstance(inputs, Tensor):
        yield inputs
    elif isinstance(inputs, Mapping):
        yield from _tensors(list(inputs.values()))
    elif isinstance(inputs, (tuple, list)):
        for value in inputs:
            yield from _tensors(value)


EMBEDDINGS = ("sentence_embedding", "image_embeds", "text_embeds", "audio_embeds", "video_embeds")
"""Fields of an output object that hold its embedding by their name; a pooler's is a guess."""


def check_returned(output: Any, *, one_item: bool = False) -> Tensor:
    """The model's output [B, Z] itself, or the one field of an output object that is an embedding.

    Parameters
    ----------
    one_item : bool
        Whether the inputs were one row [D], so that one vector [Z] is right.

    Raises
    ------
    HeadError
        If it is something else; the message says what, and which adapter reads it.
    InputError
        If the tensor holds no floating numbers in plain memory.
    """
    embedding = output if isinstance(output, Tensor) else _embedding_of(output)
    sizes = (1, 2) if one_item else (2,)
    if embedding is not None and not embedding.is_nested and embedding.ndim in sizes:
        return check_floating("what the model returned", embedding)
    raise HeadError(f"the model returned {shown(output)}, not a tensor [B, Z]: {_advice(output)}")


def _embedding_of(output: Any) -> Tensor | None:
    """The embedding of an output object, where there is exactly one by its name.

    Examples
    --------
    >>> import torch
    >>> z = torch.ones(2, 3)
    >>> _embedding_of({"image_embeds": z, "pooler_output": z[:, :1]}).shape
    torch.Size([2, 3])
    >>> _embedding_of({"image_embeds": z, "text_embeds": z}) is None
    True
    """
    fields = output if isinstance(output, Mapping) else getattr(output, "__dict__", {})
    found = [fields[name] for name in EMBEDDINGS if isinstance(fields.get(name), Tensor)]
    return found[0] if len(found) == 1 else None


def _advice(output: Any) -> str:
    if isinstance(output, Mapping) and "sentence_embedding" in output:
        return "pass models.Sentences(model), which takes strings."
    if isinstance(output, Tensor) and output.ndim == 3:
        return "models.Pooled(model, 'mean') takes the mean over the tokens [B, T, Z]."
    if isinstance(output, Tensor) and output.ndim == 4:
        return (
            "average its maps with torch.nn.Sequential(model, torch.nn.AdaptiveAvgPool2d(1), "
            "torch.nn.Flatten())."
        )
    if isinstance(output, (Mapping, tuple)):
        return (
            "models.Pooled(model, pooling, field) reads one field, such as pooling='mean' of "
            "vectors [B, T, Z] or pooling=None of one that is [B, Z]; models.Call(model, method) "
            "calls a method, such as 'encode_image'."
        )
    return "wrap it in a module that returns the embedding only."

"""What a model returned, in words, and how to make one tensor [B, Z] of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from laplace_metric._utils.validation import check_floating
from laplace_metric.errors import HeadError
from laplace_metric.inputs._shown import shown

EMBEDDINGS = ("sentence_embedding", "image_embeds", "text_embeds", "audio_embeds", "video_embeds")
"""Fields of an output object that hold its embedding by their name; a pooler's is a guess."""


def check_returned(output: Any, *, one_item: bool = False) -> Tensor:
    """Return the model's output [B, Z], or the one field of an output object that is an embedding.

    Parameters
    ----------
    output : anything
        Value that the model returned.
    one_item : bool
        True if the inputs were one row [D], so that one vector [Z] is right. Default: False.

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
    """Return the embedding of an output object, where there is exactly one by its name.

    Examples
    --------
    >>> import torch
    >>> z = torch.ones(2, 3)
    >>> _embedding_of({"image_embeds": z, "pooler_output": z[:, :1]}).shape
    torch.Size([2, 3])
    >>> _embedding_of({"image_embeds": z, "text_embeds": z}) is None
    True
    """
    fields = _fields(output)
    found = [fields[name] for name in EMBEDDINGS if isinstance(fields.get(name), Tensor)]
    return found[0] if len(found) == 1 else None


def _fields(output: Any) -> Mapping[str, Any]:
    """Return the fields of an output object by name; of a plain tuple or list none."""
    if isinstance(output, Mapping):
        return output
    if isinstance(output, tuple):
        return output._asdict() if hasattr(output, "_asdict") else {}
    return getattr(output, "__dict__", {})


def _advice(output: Any) -> str:
    fields = _fields(output)
    if isinstance(fields.get("last_hidden_state"), Tensor):
        pooler = ""
        if isinstance(fields.get("pooler_output"), Tensor):
            pooler = ", and models.Pooled(model, None, 'pooler_output') the vector of its pooler"
        return (
            "models.Pooled(model, 'mean') takes the mean of last_hidden_state over the tokens, "
            f"'cls' its first token{pooler}; models.Call(model, method) calls a method, such as "
            "'encode_image'."
        )
    if isinstance(output, Mapping) and "sentence_embedding" in output:
        return "pass models.Sentences(model), which takes strings."
    if isinstance(output, Tensor) and output.ndim == 3:
        return "models.Pooled(model, 'mean') takes the mean over the tokens [B, T, Z]."
    if isinstance(output, Tensor) and output.ndim == 4:
        return (
            "average its maps with torch.nn.Sequential(model, torch.nn.AdaptiveAvgPool2d(1), "
            "torch.nn.Flatten())."
        )
    if isinstance(output, Tensor) and output.ndim == 1:
        return (
            "one item is a batch of one row, x[None], and a list of items torch.stack(items). If "
            "the inputs are a batch already, make the model return [B, Z]."
        )
    held = list(fields.values()) or (output if isinstance(output, (tuple, list)) else [])
    if any(isinstance(value, Tensor) for value in held):
        return (
            "models.Pooled(model, pooling, field) reads one field (0: the first of a tuple), "
            "such as pooling='mean' of vectors [B, T, Z] or pooling=None of one that is [B, Z]; "
            "models.Call(model, method) "
            "calls a method, such as 'encode_image'."
        )
    return "wrap it in a module that returns the embedding only."

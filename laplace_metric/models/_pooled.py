"""``Pooled``: one vector from the vectors of tokens, or one of several outputs."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from laplace_metric._utils.validation import check_floating
from laplace_metric.errors import InputError, UnknownNameError
from laplace_metric.inputs._shown import shown
from laplace_metric.models._modules import check_module, unwrapped

POOLINGS = ("mean", "cls", "last")


class Pooled(nn.Module):
    """One field of a model's output as a tensor [B, Z], as Hugging Face's transformers need it.

    Parameters
    ----------
    model : nn.Module
        Returns a ``ModelOutput``, a dict, a tuple or a tensor.
    pooling : "mean" | "cls" | "last" | None
        Vector of an input, from the vectors of its tokens [B, T, Z]: their mean, the first or the
        last of them. Default: "mean".
        Padding, where ``attention_mask`` is zero, counts neither for "mean" nor for "last". Maps
        [B, Z, H, W] have their mean.
        None: the field is one vector per input already.
    field : name, place in a tuple, or None
        Field of the output that is pooled. None, the default: "last_hidden_state" with a pooling,
        "pooler_output" without.

    Raises
    ------
    InputError
        When called, if the output lacks the field, or the field cannot be pooled. NaN and infinity
        of the tokens pass through: what embeds with this model refuses them.

    Examples
    --------
    >>> class Tokens(nn.Module):
    ...     def forward(self, input_ids, attention_mask):
    ...         return {"last_hidden_state": input_ids[..., None].float()}
    >>> ids, mask = torch.tensor([[1, 3, 0], [2, 4, 6]]), torch.tensor([[1, 1, 0], [1, 1, 1]])
    >>> Pooled(Tokens(), "mean")(input_ids=ids, attention_mask=mask)
    tensor([[2.],
            [4.]])
    """

    def __init__(
        self, model: nn.Module, pooling: str | None = "mean", field: str | int | None = None
    ) -> None:
        super().__init__()
        self.model = check_module(model)
        if pooling is not None and pooling not in POOLINGS:
            raise UnknownNameError("pooling", pooling, POOLINGS)
        self.pooling = pooling
        usual = "pooler_output" if pooling is None else "last_hidden_state"
        self.field = usual if field is None else field

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return one vector per input [B, Z].

        Raises
        ------
        InputError
            If the field holds no vectors of tokens, and so cannot be pooled.
        """
        tokens = _read(self.model(*args, **kwargs), self.field)
        if self.pooling is None:
            return tokens
        check_floating(f"field {self.field!r}", tokens)
        if tokens.ndim == 4 and self.pooling == "mean":
            return tokens.mean((2, 3))
        if tokens.ndim != 3:
            raise InputError(
                f"pooling={self.pooling!r} needs vectors of tokens [B, T, Z]; {self.field!r} is "
                f"{shown(tokens)}: pass pooling=None for a field [B, Z]."
            )
        return pooled(tokens, self._mask(args, kwargs), self.pooling)

    def _mask(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """Return ``attention_mask``, by name or by its place among the model's arguments."""
        bound = signature(unwrapped(self.model).forward).bind_partial(*args, **kwargs).arguments
        mask: Tensor | None = kwargs.get("attention_mask", bound.get("attention_mask"))
        return mask

    def extra_repr(self) -> str:
        """Describe the output that is read."""
        return f"pooling={self.pooling!r}, field={self.field!r}"


def pooled(
    tokens: Float[Tensor, "B T Z"], mask: Shaped[Tensor, "B T"] | None, pooling: str
) -> Float[Tensor, "B Z"]:
    """Return one vector per input, of the vectors of its tokens.

    ``mask`` is zero at padding, which may stand on either side; None: there is no padding.

    Raises
    ------
    InputError
        If the mask has another shape than the tokens.
    """
    if pooling == "cls":
        return tokens[:, 0]
    if mask is None:
        return tokens.mean(1) if pooling == "mean" else tokens[:, -1]
    if mask.shape != tokens.shape[:2]:
        raise InputError(
            f"attention_mask is {shown(mask)} for tokens {shown(tokens)}: pass one number a token."
        )
    padding = mask.eq(0)
    if pooling == "mean":  # padding may hold anything, NaN too
        return tokens.masked_fill(padding[..., None], 0).sum(1) / (~padding).sum(1, keepdim=True)
    last = mask.shape[1] - 1 - (~padding).flip(1).int().argmax(1)
    return tokens[torch.arange(len(tokens), device=tokens.device), last]


def _read(output: Any, field: str | int) -> Tensor:
    """Return the field of a model's output; of a tensor, the tensor."""
    if isinstance(output, Tensor):
        return output
    try:
        if isinstance(output, (Mapping, tuple, list)):
            value = output[field]  # type: ignore[index]
        else:
            value = getattr(output, str(field))
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise InputError(f"field={field!r}: the model returned {shown(output)}.") from error
    if not isinstance(value, Tensor):
        raise InputError(f"field={field!r} is no tensor: the model returned {shown(output)}.")
    return value

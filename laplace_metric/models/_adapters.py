"""Models that do not map one tensor to one tensor [B, Z], wrapped so that they do.

``Precomputed``: embeddings that are arrays already. ``Call``: a method of a model. ``Pooled``: one
vector per token, or several outputs. ``Sentences``: a model of sentence-transformers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from laplace_metric._utils.validation import as_tensor, check_count, check_dense, check_floating
from laplace_metric.errors import InputError, NonFiniteError, UnknownNameError
from laplace_metric.models._calling import check_module, device_of, shown, to_device, unwrapped
from laplace_metric.models._rows import bad_rows


class Precomputed(nn.Module):
    """Arrays [N, D] (NumPy, lists, tensors) as a float tensor; the size is fixed at first use.

    One row [D] of a known size is a batch of one.

    Parameters
    ----------
    size : int or None
        D; None accepts any.

    Raises
    ------
    InputError
        For a size that is no whole number above 0.

    Examples
    --------
    >>> Precomputed()([[0.5, 1.0]]).dtype
    torch.float64
    """

    takes_rows = True
    """Of a list, each entry is a row, not an argument."""

    def __init__(self, size: int | None = None) -> None:
        super().__init__()
        self.size = None if size is None else check_count("size", size)

    def forward(self, embeddings: Any) -> Float[Tensor, "N D"]:
        """The embeddings as float32 or float64.

        Raises
        ------
        InputError
            For no numbers, another shape or another size.
        NonFiniteError
            For NaN or infinity.
        """
        if isinstance(embeddings, Tensor):
            tensor = check_dense("embeddings", embeddings)  # through which gradients still flow
        else:
            tensor = as_tensor("embeddings", embeddings)
        size, shape = self.size, tuple(tensor.shape)
        if shape == (size,):
            tensor = tensor[None]
        elif len(shape) != 2 and (size is None or len(shape) != 1):
            raise InputError(f"embeddings have shape {shape}: pass [N, {size or 'D'}].")
        elif size not in (None, shape[-1]):
            raise InputError(
                f"these embeddings have {shape[-1]} numbers each, and {size} were fitted, so an "
                f"index holds {size} too: pass [N, {size}], from the same encoder."
            )
        values = tensor if tensor.dtype == torch.float64 else tensor.float()
        if not bool(torch.isfinite(values).all()):
            named = bad_rows((~torch.isfinite(values)).any(1))
            raise NonFiniteError(
                f"embeddings hold NaN or infinity in {named}: leave these rows out."
            )
        return values


class Call(nn.Module):
    """``model.method(*inputs, **options)``, such as one tower of a CLIP.

    Parameters
    ----------
    model : nn.Module
    method : str
        Name of the method, such as "encode_image".
    **options
        Passed to every call, such as ``normalize=True``.

    Raises
    ------
    InputError
        If the model has no such method.

    Examples
    --------
    >>> import torch
    >>> class TwoTowers(nn.Module):
    ...     def encode_image(self, image, normalize=False):
    ...         f = image.flatten(1)
    ...         return nn.functional.normalize(f, dim=-1) if normalize else f
    >>> Call(TwoTowers(), "encode_image", normalize=True)(torch.ones(2, 1, 2, 2))
    tensor([[0.5000, 0.5000, 0.5000, 0.5000],
            [0.5000, 0.5000, 0.5000, 0.5000]])
    """

    def __init__(self, model: nn.Module, method: str, **options: Any) -> None:
        super().__init__()
        self.model = check_module(model)
        if not isinstance(method, str) or not callable(getattr(model, method, None)):
            raise InputError(f"method={method!r}: {type(model).__name__} has no such method.")
        self.method, self.options = method, options

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Whatever the method returns.

        Raises
        ------
        InputError
            If the method does not take what it is called with.
        TypeError
            As the method itself raises it.
        """
        method = getattr(self.model, self.method)
        try:
            return method(*args, **kwargs, **self.options)
        except TypeError as error:
            try:  # an error of the method itself stays as it is
                signature(method).bind(*args, **kwargs, **self.options)
            except TypeError as reason:
                message = f"method={self.method!r} cannot be called so: {reason}."
                raise InputError(message) from error
            raise

    def extra_repr(self) -> str:
        """Describe the function that is called."""
        return ", ".join([self.method, *(f"{k}={v!r}" for k, v in self.options.items())])


POOLINGS = ("mean", "cls", "last")


class Pooled(nn.Module):
    """One field of a model's output as a tensor [B, Z], as Hugging Face's transformers need it.

    Parameters
    ----------
    model : nn.Module
        Returns a ``ModelOutput``, a dict, a tuple or a tensor.
    pooling : "mean" | "cls" | "last" | None
        How the vectors of tokens [B, T, Z] become one: their mean, the first or the last of them.
        Padding, where ``attention_mask`` is zero, counts neither for "mean" nor for "last". Maps
        [B, Z, H, W] have their mean.
        None: the field is one vector per input already.
    field : name, place in a tuple, or None
        None: "last_hidden_state" with a pooling, "pooler_output" without.

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
        """One vector per input [B, Z].

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
        """``attention_mask``, by name or by its place among the model's arguments."""
        bound = signature(unwrapped(self.model).forward).bind_partial(*args, **kwargs).arguments
        mask: Tensor | None = kwargs.get("attention_mask", bound.get("attention_mask"))
        return mask

    def extra_repr(self) -> str:
        """Describe the output that is read."""
        return f"pooling={self.pooling!r}, field={self.field!r}"


def pooled(
    tokens: Float[Tensor, "B T Z"], mask: Shaped[Tensor, "B T"] | None, pooling: str
) -> Float[Tensor, "B Z"]:
    """The vectors of tokens as one vector per input.

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
    """The field of a model's output; of a tensor, the tensor."""
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


class Sentences(nn.Module):
    """Embedding by ``model.encode`` of a list of B strings, as one batch [B, Z].

    Unlike ``encode``, it neither switches the model to evaluation mode nor stops gradients: the
    caller decides.

    Parameters
    ----------
    model : SentenceTransformer
    prompt : str or None
        Put before every text; None: the model's default prompt, if it has one.

    Raises
    ------
    InputError
        If the model is not one of sentence-transformers.
    """

    model: Any

    def __init__(self, model: nn.Module, prompt: str | None = None) -> None:
        super().__init__()
        self.model = check_module(model)
        if not callable(getattr(model, "preprocess", None)):
            raise InputError(
                f"model is a {type(model).__name__}: pass a SentenceTransformer of "
                "sentence-transformers 5.4 or newer (it needs model.preprocess)."
            )
        default = self.model.prompts.get(self.model.default_prompt_name)
        self.prompt: str | None = default if prompt is None else prompt

    def forward(self, texts: Sequence[str]) -> Tensor:
        """Embeddings [B, Z] of B strings.

        Raises
        ------
        InputError
            If the texts are not a list of strings.
        """
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise InputError(f"texts is a {type(texts).__name__}: pass a list of strings.")
        tokens = self.model.preprocess(list(texts), prompt=self.prompt)
        output = self.model(to_device(tokens, device_of(self.model)))
        embeddings: Tensor = output["sentence_embedding"]
        return embeddings[:, : self.model.truncate_dim]

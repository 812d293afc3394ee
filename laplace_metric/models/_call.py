"""``Call``: a method of a model, such as one tower of a CLIP."""

from __future__ import annotations

from inspect import signature
from typing import Any

from torch import nn

from laplace_metric.errors import InputError
from laplace_metric.models._modules import check_module


class Call(nn.Module):
    """``model.method(*inputs, **options)``, such as one tower of a CLIP.

    Parameters
    ----------
    model : nn.Module
        Model whose method is called.
    method : str
        Name of the method, such as "encode_image".
    **options
        Keyword arguments of every call, such as ``normalize=True``.

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
        """Return whatever the method returns.

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

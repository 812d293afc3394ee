"""A method of a model as a module."""

from __future__ import annotations

from typing import Any

from torch import nn

from laplace_metric.errors import InputError
from laplace_metric.wrapped import check_module


class Call(nn.Module):
    """``model.method(*inputs, **options)``, such as one tower of a CLIP.

    Parameters
    ----------
    model : nn.Module
    method : str
        Name of a method, such as "encode_image".
    **options
        Given to every call, such as ``normalize=True``.

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
        if not callable(getattr(model, method, None)):
            raise InputError(f"method={method!r}: {type(model).__name__} has no such method.")
        self.method, self.options = method, options

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Whatever the method returns."""
        return getattr(self.model, self.method)(*args, **kwargs, **self.options)

    def extra_repr(self) -> str:
        """The call."""
        return ", ".join([self.method, *(f"{k}={v!r}" for k, v in self.options.items())])

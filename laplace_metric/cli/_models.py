"""What ``--model`` names: a factory of the user, a timm model, a sentence transformer."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric.errors import InputError, MissingPackageError
from laplace_metric.models import Inputs, call_model, evaluation_mode, to_device
from laplace_metric.models.heads import APPEND

FORMS = (
    "package.module:factory (a function without arguments, or an nn.Module), timm:NAME, "
    "sentence-transformers:NAME_OR_FOLDER"
)


@dataclass(frozen=True)
class LoadedModel:
    """A model, its transform of images (PIL image -> tensor), and its default head."""

    model: nn.Module
    transform: Callable[[Any], Any] | None = None
    head: str | None = None


def load_model(name: str, device: str | None = None) -> LoadedModel:
    """The model that a name stands for, on ``device``.

    Raises
    ------
    InputError
        If there is no such model or device, or making it fails.
    MissingPackageError
        If its package is not installed.
    """
    prefix, _, rest = name.partition(":")
    if not prefix or not rest:
        raise InputError(f"--model {name!r}: give {FORMS}.")
    loaded = _LOADERS.get(prefix, _from_factory)(name, rest)
    try:
        return replace(loaded, model=loaded.model.to(device or "cpu"))
    except (RuntimeError, AssertionError) as error:
        line = str(error).splitlines()[0]
        raise InputError(f"--device {device}: {line}") from error


def code_of(name: str) -> str:
    """What loading a model runs, in words.

    Examples
    --------
    >>> code_of("my_model:embedder")
    "it would import 'my_model' and call 'embedder' of it"
    """
    prefix, _, rest = name.partition(":")
    if prefix in _LOADERS:
        return f"it would load {rest!r} with {prefix}"
    return f"it would import {prefix!r} and call {rest!r} of it"


def check_inputs(name: str, model: nn.Module, inputs: Inputs) -> None:
    """Check that a model takes these inputs.

    Raises
    ------
    InputError
        If it fails on them; the error that it raises is in the message.
    """
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    try:
        with evaluation_mode(model):
            call_model(model, to_device(inputs, device))
    except Exception as error:
        raise InputError(
            f"--model {name} fails on {_shape(inputs)}: {_one_line(error)}. For images, --size and "
            "--channels say how they are made."
        ) from error


class SentenceTransformer(nn.Module):
    """B strings -> sentence embeddings [B, Z]; no gradient flows through the encoder."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, texts: Sequence[str]) -> Tensor:
        """Embeddings on the encoder's device."""
        options = {"batch_size": len(texts), "convert_to_tensor": True, "show_progress_bar": False}
        return self.encoder.encode(list(texts), **options).clone()  # no inference tensor


def _from_factory(name: str, attribute: str) -> LoadedModel:
    module, _, _ = name.partition(":")
    with _current_folder_importable():
        value: Any = _guarded(f"--model {name}: importing {module}", partial(import_module, module))
        for part in attribute.split("."):
            if not hasattr(value, part):
                raise InputError(f"--model {name}: {module} has no {attribute!r}.")
            value = getattr(value, part)
        if not isinstance(value, nn.Module) and callable(value):
            value = _guarded(f"--model {name}: {attribute}()", value)
    model, transform = value if isinstance(value, tuple) and len(value) == 2 else (value, None)
    if not isinstance(model, nn.Module):
        raise InputError(
            f"--model {name} gives a {type(model).__name__}: give an nn.Module, or a pair "
            "(nn.Module, transform)."
        )
    return LoadedModel(model, transform)


def _timm(name: str, rest: str) -> LoadedModel:
    timm = _package("timm", "timm", name)
    create = partial(timm.create_model, rest, pretrained=True, num_classes=0)
    model = _guarded(f"--model {name}", create)
    config = timm.data.resolve_model_data_config(model)
    return LoadedModel(model, timm.data.create_transform(**config, is_training=False), APPEND)


def _sentences(name: str, rest: str) -> LoadedModel:
    package = _package("sentence_transformers", "sentence-transformers", name)
    create = partial(package.SentenceTransformer, rest, device="cpu")
    return LoadedModel(SentenceTransformer(_guarded(f"--model {name}", create)), head=APPEND)


_LOADERS: dict[str, Callable[[str, str], LoadedModel]] = {
    "timm": _timm,
    "sentence-transformers": _sentences,
}


def _package(module: str, package: str, name: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        if getattr(error, "name", None) != module:
            raise InputError(f"--model {name}: {package} cannot be imported: {error}.") from error
        raise MissingPackageError(package, f"--model {name}", f"pip install {package}") from error


def _guarded(what: str, call: Callable[[], Any]) -> Any:
    """What ``call`` returns; code of the user may raise anything, which becomes one line."""
    try:
        return call()
    except Exception as error:
        raise InputError(f"{what} fails: {_one_line(error)}.") from error


def _one_line(error: Exception) -> str:
    """An error in one line, with the place that raised it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    lines = str(error).strip().splitlines() or [""]
    location = "" if frame.filename.startswith("<") else f" ({frame.filename}:{frame.lineno})"
    return f"{type(error).__name__}: {lines[0]}{location}".rstrip(".")


def _shape(inputs: Inputs) -> str:
    return f"inputs {list(inputs.shape)}" if isinstance(inputs, Tensor) else f"{inputs!r:.60}"


@contextmanager
def _current_folder_importable() -> Iterator[None]:
    sys.path.insert(0, "")
    try:
        yield
    finally:
        sys.path.remove("")

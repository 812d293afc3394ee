"""Models that others have published, by the library that loads them.

Each gives features, behind which a new linear layer is the head; classifiers are taken off.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from torch import Tensor, nn

from laplace_metric._utils.hub import without_retries
from laplace_metric.cli._nearest import did_you_mean
from laplace_metric.cli.models._identity import transform_identity
from laplace_metric.errors import InputError, MissingPackageError
from laplace_metric.models import Call, Pooled, device_of, to_device
from laplace_metric.models.heads import APPEND


@dataclass(frozen=True)
class LoadedModel:
    """A model, its transform of images (PIL image -> tensor), and its default head.

    ``reads`` says what the transform does, so that another one is described otherwise; "" without
    one, None where it is not known, as of a transform that a user wrote.
    """

    model: nn.Module
    transform: Callable[[Any], Any] | None = None
    head: str | None = None
    reads: str | None = ""


class SentenceTransformer(nn.Module):
    """B strings -> sentence embeddings [B, Z]; no gradient flows through the encoder."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, texts: Sequence[str]) -> Tensor:
        """Embeddings on the encoder's device."""
        options = {"batch_size": len(texts), "convert_to_tensor": True, "show_progress_bar": False}
        return self.encoder.encode(list(texts), **options).clone()  # no inference tensor


class TokenizedTexts(nn.Module):
    """B strings -> mean [B, Z] of their tokens' vectors, by a model of transformers."""

    def __init__(self, model: nn.Module, tokenizer: Any, longest: int) -> None:
        super().__init__()
        self.model, self.tokenizer, self.longest = Pooled(model, "mean"), tokenizer, longest

    def extra_repr(self) -> str:
        return f"longest={self.longest}, {self.tokenizer!r}"

    def forward(self, texts: Sequence[str]) -> Tensor:
        """Embeddings on the model's device; what a text has beyond the longest is cut off."""
        how = {"padding": True, "truncation": True, "max_length": self.longest}
        tokens = self.tokenizer(list(texts), return_tensors="pt", **how)
        vectors: Tensor = self.model(**to_device(dict(tokens), device_of(self)))
        return vectors


class FeatureMaps(nn.Module):
    """Images [B, C, H, W] -> one vector each [B, Z], by a model of transformers.

    Of tokens [B, T, Z] the class token, or their mean where there is none; of maps [B, Z, H, W]
    their mean. ``pooler_output`` is not used: of a classifier's weights it may be random.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.first = any(name.endswith("cls_token") for name, _ in model.named_parameters())

    def forward(self, images: Tensor) -> Tensor:
        """Embeddings on the model's device."""
        vectors: Tensor = self.model(pixel_values=images).last_hidden_state
        if vectors.ndim == 4:
            return vectors.mean((2, 3))
        return vectors[:, 0] if self.first else vectors.mean(1)


def _timm(name: str, rest: str) -> LoadedModel:
    with without_retries(rest):
        timm = _package("timm", "timm", name)
        create = partial(timm.create_model, rest, pretrained=True, num_classes=0)
        model = _created(name, rest, create, lambda: timm.list_models(pretrained=True))
    config = timm.data.resolve_model_data_config(model)
    transform = timm.data.create_transform(**config, is_training=False)
    return LoadedModel(model, transform, APPEND, transform_identity(transform, timm, config))


def _torchvision(name: str, rest: str) -> LoadedModel:
    models = _package("torchvision", "torchvision", name).models
    architecture, _, chosen = rest.partition("/")

    def create() -> tuple[nn.Module, Any]:
        weights = models.get_model_weights(architecture)[chosen or "DEFAULT"]
        return models.get_model(architecture, weights=weights), weights.transforms()

    model, transform = _created(name, architecture, create, lambda: models.list_models())
    linear = [path for path, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    if not linear:
        raise InputError(f"--model {name}: it has no linear layer to take off. Give a factory.")
    parent, _, last = linear[-1].rpartition(".")
    setattr(model.get_submodule(parent), last, nn.Identity())
    return LoadedModel(
        model, transform, APPEND, transform_identity(transform, import_module("torchvision"))
    )


def _open_clip(name: str, rest: str) -> LoadedModel:
    with without_retries(rest):
        library = _package("open_clip", "open_clip_torch", name)
        in_hub = rest.startswith("hf-hub:")
        architecture, _, weights = (rest, "", "") if in_hub else rest.partition("/")
        if not (in_hub or weights):
            tags = library.list_pretrained_tags_by_model(architecture)
            near = did_you_mean(architecture, library.list_models())
            listed = f" Weights of {architecture}: {', '.join(tags)}." if tags else near
            raise InputError(f"--model {name}: give open_clip:NAME/WEIGHTS.{listed}")
        how = {} if in_hub else {"pretrained": weights}
        create = partial(library.create_model_and_transforms, architecture, **how)
        model, _, transform = _created(name, architecture, create, library.list_models)
    reads = transform_identity(transform, library)
    return LoadedModel(Call(model, "encode_image"), transform, APPEND, reads)


def _sentences(name: str, rest: str) -> LoadedModel:
    with without_retries(rest):
        package = _package("sentence_transformers", "sentence-transformers", name)
        create = partial(package.SentenceTransformer, rest, device="cpu")
        encoder = guarded(f"--model {name}", create)
    return LoadedModel(SentenceTransformer(encoder), head=APPEND)


def _transformers(name: str, rest: str) -> LoadedModel:
    with without_retries(rest):
        library = _package("transformers", "transformers", name)
        return guarded(f"--model {name}", lambda: _of_transformers(library, rest))


def _of_transformers(library: Any, rest: str) -> LoadedModel:
    """Images where the model takes them, also of one with two towers; else texts."""
    model = library.AutoModel.from_pretrained(rest)
    if hasattr(model, "get_image_features") or model.main_input_name == "pixel_values":
        processor = library.AutoImageProcessor.from_pretrained(rest)
        towers = hasattr(model, "get_image_features")
        images = Pooled(Call(model, "get_image_features"), None) if towers else FeatureMaps(model)
        transform = partial(_processed, processor)
        reads = transform_identity(transform, library, processor)
        return LoadedModel(images, transform, APPEND, reads)
    tokenizer = library.AutoTokenizer.from_pretrained(rest)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if model.config.is_encoder_decoder:
        model = model.get_encoder()
    places = getattr(model.config, "max_position_embeddings", None) or 512
    longest = min(tokenizer.model_max_length, places)
    return LoadedModel(TokenizedTexts(model, tokenizer, longest), head=APPEND)


def _processed(processor: Any, image: Any) -> Any:
    return processor(images=image.convert("RGB"), return_tensors="pt")["pixel_values"][0]


PUBLISHED: dict[str, tuple[str, Callable[[str, str], LoadedModel]]] = {
    "timm": ("timm:NAME", _timm),
    "torchvision": ("torchvision:NAME", _torchvision),
    "open_clip": ("open_clip:NAME/WEIGHTS", _open_clip),
    "hf": ("hf:NAME_OR_FOLDER (of transformers)", _transformers),
    "sentence-transformers": ("sentence-transformers:NAME_OR_FOLDER", _sentences),
}
"""By the prefix of ``--model``: how it is written, and what loads it."""


def _created(
    name: str, model: str, create: Callable[[], Any], known: Callable[[], Iterable[str]]
) -> Any:
    """What ``create`` makes; if there is no such model, the error names those that are near."""
    try:
        return guarded(f"--model {name}", create)
    except InputError as error:
        names = list(known())
        near = "" if model in names else did_you_mean(model, names)
        raise InputError(f"{error}{near}") from error


def _package(module: str, package: str, name: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        if getattr(error, "name", None) != module:
            raise InputError(f"--model {name}: {package} cannot be imported: {error}.") from error
        raise MissingPackageError(package, f"--model {name}", f"pip install {package}") from error


def guarded(what: str, call: Callable[[], Any]) -> Any:
    """What ``call`` returns; the code of others may raise anything, which becomes one line.

    Raises
    ------
    InputError
        With what it raised, and where.
    """
    try:
        return call()
    except Exception as error:
        raise InputError(f"{what} fails: {one_line(error)}.") from error


def one_line(error: Exception) -> str:
    """An error in one line, with the place that raised it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    lines = str(error).strip().splitlines() or [""]
    location = "" if frame.filename.startswith("<") else f" ({frame.filename}:{frame.lineno})"
    return f"{type(error).__name__}: {lines[0]}{location}".rstrip(".")

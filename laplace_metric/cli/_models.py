"""Models that a command names: loaded from code or a library, and identified.

Its weights and buffers, how it is written down, the files of code that define its layers, where
and with what it runs; and its answer, to the last bit, to inputs that are the same each time. The
answer notices what none of the others does: code that a layer calls, another thread count, another
processor, a network that draws at random.

Models that others have published, by the library that loads them.

Each gives features, behind which a new linear layer is the head; classifiers are taken off.
"""

from __future__ import annotations

import hashlib
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from laplace_metric._utils import __version__
from laplace_metric._utils.hub import without_retries
from laplace_metric.cli._sources import ReadOptions
from laplace_metric.cli._words import did_you_mean
from laplace_metric.errors import InputError, MissingPackageError
from laplace_metric.heads._locate import APPEND, LocatedHead, capture
from laplace_metric.io import digest
from laplace_metric.models import Call, Pooled, Sentences
from laplace_metric.models._calling import Inputs, call_model, device_of, evaluation_mode, to_device

TEXTS = ["a small red fox, seen from the left", "42 Ünïts; and a text of quite another length!"]
LONG = " ".join(str(number) for number in range(1, 300))
"""What a network of texts is asked; the long one shows where texts are cut off."""
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def network_identity(model: nn.Module, head: LocatedHead) -> str:
    """sha256 of all that is known of a network without running it.

    Examples
    --------
    >>> from laplace_metric.heads._locate import find_head
    >>> model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    >>> x = torch.ones(2, 3)
    >>> one, two = (network_identity(m, find_head(m, x)) for m in (model, other))
    >>> one == two, one == network_identity(model, find_head(model, x))
    (False, True)
    """
    device = device_of(model)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    runs = f"{device} {name} {torch.get_num_threads()} {torch.__version__} {__version__}"
    tensors = {  # those too that a ``state_dict`` leaves out
        f"{which} {name}": tensor
        for which, module in (("model", model), ("head", head.module))
        for name, tensor in chain(module.named_parameters(), module.named_buffers())
    }
    code = f"{_code_of(model)} {head.name} {head.normalized}"
    told = f"{without_addresses(repr(model))} {list(tensors)} {runs} {code}"
    return digest(told, tensors.values())


def _code_of(model: nn.Module) -> str:
    """sha256 of the files that define the classes of its modules."""
    classes = {base for module in model.modules() for base in type(module).__mro__}
    names = sorted({base.__module__ for base in classes if issubclass(base, nn.Module)})
    sha256 = hashlib.sha256()
    for name in names:
        path = getattr(sys.modules.get(name), "__file__", None)
        sha256.update(name.encode())
        if path is not None and Path(path).is_file():
            sha256.update(Path(path).read_bytes())
    return sha256.hexdigest()


def without_addresses(text: str) -> str:
    """A representation without what differs between two runs.

    Examples
    --------
    >>> without_addresses("<function rgb at 0x7f2b1c>")
    '<function rgb>'
    """
    return ADDRESS.sub("", text)


def transform_identity(transform: Any, library: Any, *settings: Any) -> str | None:
    """Identify a library's transform of images: versions, its settings, and one image by it.

    None if it makes no tensor of that image.
    """
    names = (library.__name__, "torchvision", "PIL")
    versions = [getattr(sys.modules.get(name), "__version__", "") for name in names]
    noise = torch.randint(256, (47, 61, 3), generator=torch.Generator().manual_seed(0))
    try:
        made = transform(Image.fromarray(noise.to(torch.uint8).numpy()))
        answer = digest("", [made])
    except Exception:  # the code of others may raise anything
        return None
    return without_addresses(f"{library.__name__} {versions} {settings} {transform!r} {answer}")


def network_answer(model: nn.Module, head: LocatedHead, like: Inputs) -> str | None:
    """sha256 of what enters and leaves the head for fixed inputs of the kind of ``like``.

    None where there is no such input, or the model fails on it, or answers differently each time.
    """
    questions: list[Inputs] = []
    if isinstance(like, list) and isinstance(like[0], str):
        questions = [[*TEXTS, LONG], TEXTS]  # the second is for a model that fails on the first
    elif isinstance(like, Tensor) and like.is_floating_point():
        noise = torch.randn(2, *like.shape[1:], generator=torch.Generator().manual_seed(0))
        questions = [noise.to(like.dtype)]
    for asked in questions:
        inputs = to_device(asked, device_of(model))
        try:
            seen = [capture(model, head, inputs) for _ in range(2)]
        except Exception:  # the code of others may raise anything
            continue
        answers = {digest("", (one.features, one.raw, one.output)) for one in seen}
        return answers.pop() if len(answers) == 1 else None
    return None


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

    def reading(self, options: ReadOptions) -> ReadOptions:
        """How to read inputs of this model.

        Raises
        ------
        InputError
            For a size next to a transform.
        """
        if self.transform is not None and options.size is not None:
            raise InputError("--size: this model comes with a transform, which sets the size.")
        return replace(options, transform=self.transform)


class TokenizedTexts(nn.Module):
    """B strings -> mean [B, Z] of their tokens' vectors, by a model of transformers."""

    def __init__(self, model: nn.Module, tokenizer: Any, longest: int) -> None:
        super().__init__()
        self.model, self.tokenizer, self.longest = Pooled(model, "mean"), tokenizer, longest

    def extra_repr(self) -> str:
        return f"longest={self.longest}, {self.tokenizer!r}"

    def forward(self, texts: Sequence[str]) -> Tensor:
        """Embeddings on the model's device; what a text has beyond the longest is cut off."""
        tokens = self.tokenizer(
            list(texts),
            return_tensors="pt",
            padding=True,
            truncation=True,
            max_length=self.longest,
        )
        vectors: Tensor = self.model(**to_device(dict(tokens), device_of(self)))
        return vectors


def _timm(name: str, rest: str) -> LoadedModel:
    timm = _package("timm", "timm", name)
    create = partial(timm.create_model, rest, pretrained=True, num_classes=0)
    model = _created(name, rest, create, lambda: timm.list_models(pretrained=True))
    config = timm.data.resolve_model_data_config(model)
    transform = timm.data.create_transform(**config, is_training=False)
    return LoadedModel(model, transform, APPEND, transform_identity(transform, timm, config))


def _torchvision(name: str, rest: str) -> LoadedModel:
    library = _package("torchvision", "torchvision", name)
    architecture, _, chosen = rest.partition("/")

    def create() -> tuple[nn.Module, Any]:
        weights = library.models.get_model_weights(architecture)[chosen or "DEFAULT"]
        return library.models.get_model(architecture, weights=weights), weights.transforms()

    model, transform = _created(name, architecture, create, library.models.list_models)
    linear = [path for path, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    if not linear:
        raise InputError(f"--model {name}: it has no linear layer to take off. Give a factory.")
    parent, _, last = linear[-1].rpartition(".")
    setattr(model.get_submodule(parent), last, nn.Identity())
    return LoadedModel(model, transform, APPEND, transform_identity(transform, library))


def _open_clip(name: str, rest: str) -> LoadedModel:
    library = _package("open_clip", "open_clip_torch", name)
    in_hub = rest.startswith("hf-hub:")
    architecture, _, weights = (rest, "", None) if in_hub else rest.partition("/")
    if not (in_hub or weights):
        tags = library.list_pretrained_tags_by_model(architecture)
        near = did_you_mean(architecture, library.list_models())
        listed = f" Weights of {architecture}: {', '.join(tags)}." if tags else near
        raise InputError(f"--model {name}: give open_clip:NAME/WEIGHTS.{listed}")
    create = partial(library.create_model_and_transforms, architecture, pretrained=weights)
    model, _, transform = _created(name, architecture, create, library.list_models)
    reads = transform_identity(transform, library)
    return LoadedModel(Call(model, "encode_image"), transform, APPEND, reads)


def _sentences(name: str, rest: str) -> LoadedModel:
    package = _package("sentence_transformers", "sentence-transformers", name)
    create = partial(package.SentenceTransformer, rest, device="cpu")
    return LoadedModel(Sentences(guarded(f"--model {name}", create)), head=APPEND)


def _transformers(name: str, rest: str) -> LoadedModel:
    library = _package("transformers", "transformers", name)
    return guarded(f"--model {name}", lambda: _of_transformers(library, rest))


def _of_transformers(library: Any, rest: str) -> LoadedModel:
    """Images where the model takes them, also of one with two towers; else texts."""
    model = library.AutoModel.from_pretrained(rest)
    towers = hasattr(model, "get_image_features")
    if towers or model.main_input_name == "pixel_values":
        processor = library.AutoImageProcessor.from_pretrained(rest)

        def transform(image: Any) -> Any:
            return processor(images=image.convert("RGB"), return_tensors="pt")["pixel_values"][0]

        if towers:
            images = Pooled(Call(model, "get_image_features"), None)
        else:  # not pooler_output, which may be random where a classifier was taken off
            has_token = any(path.endswith("cls_token") for path, _ in model.named_parameters())
            images = Pooled(model, "cls" if has_token else "mean")
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
    """Call ``create``; if there is no such model, the error names similar ones."""
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
    """Call ``call``; any exception of other people's code becomes one line.

    Raises
    ------
    InputError
        With what it raised, and where.
    """
    try:
        return call()
    except Exception as error:
        raise InputError(f"{what} fails: {error_line(error)}.") from error


def error_line(error: Exception) -> str:
    """An error in one line, with the place that raised it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    lines = str(error).strip().splitlines() or [""]
    location = "" if frame.filename.startswith("<") else f" ({frame.filename}:{frame.lineno})"
    return f"{type(error).__name__}: {lines[0]}{location}".rstrip(".")


# What ``--model`` names: a factory of the user, or a model that others have published.


FORMS = "package.module:factory (a function without arguments, or an nn.Module), " + ", ".join(
    form for form, _ in PUBLISHED.values()
)


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
    in_hub = prefix in PUBLISHED and prefix != "torchvision"
    _, load = PUBLISHED.get(prefix, ("", _from_factory))
    with without_retries(rest) if in_hub else nullcontext():
        loaded = load(name, rest)
    try:
        return replace(loaded, model=loaded.model.to(device or "cpu"))
    except (RuntimeError, AssertionError) as error:
        line = str(error).splitlines()[0]
        raise InputError(f"--device {device}: {line}") from error


def code_of(name: str) -> str:
    """Describe the code that loading a model runs.

    Examples
    --------
    >>> code_of("my_model:embedder")
    "it would import 'my_model' and call 'embedder' of it"
    """
    prefix, _, rest = name.partition(":")
    if prefix in PUBLISHED:
        return f"it would load {rest!r} with {prefix}"
    return f"it would import {prefix!r} and call {rest!r} of it"


def check_inputs(name: str, model: nn.Module, inputs: Inputs) -> None:
    """Check that a model takes these inputs.

    Raises
    ------
    InputError
        If it fails on them; the error that it raises is in the message.
    """
    shown = f"inputs {list(inputs.shape)}" if isinstance(inputs, Tensor) else f"{inputs!r:.60}"
    try:
        with evaluation_mode(model):
            call_model(model, to_device(inputs, device_of(model)))
    except Exception as error:
        raise InputError(
            f"--model {name} fails on {shown}: {error_line(error)}. For images, --size and "
            "--channels say how they are made."
        ) from error


def _from_factory(name: str, attribute: str) -> LoadedModel:
    module, _, _ = name.partition(":")
    sys.path.insert(0, "")  # the current folder
    try:
        value = _imported(name, module)
        for part in attribute.split("."):
            if not hasattr(value, part):
                raise InputError(f"--model {name}: {module} has no {attribute!r}.")
            value = getattr(value, part)
        if not isinstance(value, nn.Module) and callable(value):
            value = guarded(f"--model {name}: {attribute}()", value)
    finally:
        sys.path.remove("")
    model, transform = value if isinstance(value, tuple) and len(value) == 2 else (value, None)
    if not isinstance(model, nn.Module):
        raise InputError(
            f"--model {name} gives a {type(model).__name__}: give an nn.Module, or a pair "
            "(nn.Module, transform)."
        )
    return LoadedModel(model, transform, reads="" if transform is None else None)


def _imported(name: str, module: str) -> Any:
    """A module of the user; a name that is near a prefix of ours may be a typing error."""
    try:
        return guarded(f"--model {name}: importing {module}", partial(import_module, module))
    except InputError as error:
        cause = error.__cause__
        if not isinstance(cause, ModuleNotFoundError) or cause.name != module:
            raise
        near = did_you_mean(module, PUBLISHED) or f" Give {FORMS}."
        raise InputError(f"{error}{near}") from cause

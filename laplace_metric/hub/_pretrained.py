"""Folders of ``save_pretrained``: found or fetched, with weights and a model card."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from numbers import Real
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from laplace_metric._utils import __version__
from laplace_metric._utils.display import in_words
from laplace_metric._utils.hub import without_retries
from laplace_metric._utils.validation import as_path
from laplace_metric.errors import FileFormatError, InputError, MissingPackageError
from laplace_metric.io import MALFORMED, Fields, Kind, Part, SavedFile, write, write_atomically
from laplace_metric.laplace._fitted import Fitted
from laplace_metric.models import Precomputed
from laplace_metric.models._calling import unwrapped

NAME = re.compile(r"[\w.-]+/[\w.-]+")
"""Of a repository: owner and name."""


def local_folder(source: str | Path, revision: str | None = None) -> Path:
    """The folder itself, or that of the machine's cache that holds the repository.

    Raises
    ------
    InputError
        If there is no such folder and no such repository, or it cannot be reached.
    MissingPackageError
        For a repository, without the package huggingface_hub.
    """
    path = as_path("source", source).expanduser()
    if path.is_dir():
        return path
    name = str(source)
    if isinstance(source, Path) or not NAME.fullmatch(name) or name.startswith("."):
        raise InputError(
            f"source={name!r} is no folder of this machine, nor the name of a repository: pass one "
            'that save_pretrained wrote, or "owner/name".'
        )
    with without_retries(name):
        try:
            from huggingface_hub import snapshot_download

            return Path(snapshot_download(name, revision=revision))
        except ImportError as error:
            what = f"source={name!r}, which is no folder of this machine,"
            install = "pip install huggingface_hub"
            raise MissingPackageError("huggingface_hub", what, install) from error
        except Exception as error:  # the hub's own, those of its transport, those of the disk
            first = (str(error).strip().splitlines() or [""])[0].rstrip(".")
            raise InputError(
                f"source={name!r} cannot be downloaded: {type(error).__name__}: {first}."
            ) from error


# The model card: what is in the folder, how to load it, what was measured, what numbers mean.


class NumberRows(Protocol):
    """Object that names its numbers, such as ``search.IndexReport``."""

    def rows(self) -> list[tuple[str, str]]:
        """Return pairs of a description and a number, both in words."""


Numbers = NumberRows | Mapping[str, Any]
CARD_TEXT = Path(__file__).with_name("card.txt").read_text(encoding="utf-8")


def named_numbers(numbers: Numbers | None) -> dict[str, str]:
    """Names and values in words.

    Raises
    ------
    InputError
        For what is neither a report nor a mapping of numbers.

    Examples
    --------
    >>> named_numbers({"recall@1": 0.91234, "queries": 200})
    {'recall@1': '0.9123', 'queries': '200'}
    """
    if numbers is None:
        return {}
    if not isinstance(numbers, Mapping):
        if not callable(getattr(numbers, "rows", None)):
            raise InputError(
                f"numbers is a {type(numbers).__name__}: pass a mapping of name to number, or what "
                "index.evaluate gives."
            )
        return dict(numbers.rows())
    words = {}
    for name, value in numbers.items():
        if not isinstance(value, (Real, str)):
            raise InputError(f"numbers[{name!r}] is a {type(value).__name__}: pass a number.")
        is_fraction = isinstance(value, Real) and value % 1
        words[str(name)] = in_words(float(value)) if is_fraction else str(value)
    return words


def model_card(name: str, content: Mapping[str, Any]) -> str:
    """Markdown with a header that hubs read; a license that was not given is "unknown".

    Parameters
    ----------
    name : str
        Its title.
    content : mapping
        What is written next to the posterior, see ``save_folder``.
    """
    header = {"license": content["license"] or "unknown", "library_name": "laplace-metric"}
    if content["base_model"]:
        header["base_model"] = content["base_model"]
    lines = [f"{key}: {json.dumps(value)}" for key, value in header.items()]
    what, last, model, comment = "Embeddings", "a layer after them", "", ""
    if (kind := content["model"]) is not None:
        weights = "its weights are in this folder" if content["weights"] else "with its weights"
        what, last, model = f"A {kind}", "its last layer", ", model"
        comment = f"  # model: the {kind}, {weights}"
    facts = {
        "fitted to": f"{content['points']:,} points",
        "head": f"`{content['head']}`",
        "embeddings": f"{content['dimensions']} numbers, "
        f"{'directions' if content['directions'] else 'vectors'}",
        **{key: in_words(value) for key, value in content["settings"].items() if value is not None},
        "written by": content["library"],
    }
    measured = content["numbers"]
    return CARD_TEXT.format(
        front="\n".join(lines),
        name=name,
        what=what,
        last=last,
        load=f"LaplaceEmbedder.from_pretrained({name!r}{model}){comment}",
        fit=_table(facts),
        measured=_table(measured) if measured else "Nothing was measured when this was written.",
    )


def _table(rows: Mapping[str, str]) -> str:
    lines = [f"| {_cell(name)} | {_cell(value)} |" for name, value in rows.items()]
    return "\n".join(["| | |", "| --- | --- |", *lines])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


# A folder for hubs: one file with the posterior and the weights of the model, and a card.


NETWORK = Kind("network", "a folder of save_pretrained", 1)
FILE, CARD = "laplace.safetensors", "README.md"
Weights = dict[str, Tensor]


def save_folder(
    folder: Path,
    model: nn.Module,
    fitted: Fitted,
    posterior: Part,
    about: dict[str, str | None],
    numbers: Numbers | None,
    *,
    weights: bool,
) -> None:
    """Write posterior and weights as one file, then the card.

    Raises
    ------
    InputError
        For a state that is no tensor, and numbers of another kind.
    """
    tensors, tied = untied(model.state_dict()) if weights else ({}, {})
    content: dict[str, Any] = {
        "library": f"laplace-metric {__version__}",
        "model": None if isinstance(model, Precomputed) else type(model).__name__,
        **about,
        "weights": bool(tensors),
        "tied": tied,
        "head": fitted.head.name,
        "dimensions": fitted.head.n_outputs,
        "directions": fitted.spherical,
        "points": fitted.n_points,
        "settings": posterior.content["settings"],
        "numbers": named_numbers(numbers),
    }
    card, old = model_card(folder.resolve().name, content), _card_hash(folder)
    ours = old is None or old in _our_cards(folder)
    # the old card stays ours where this process is killed before it is replaced
    content["card_sha256"] = [_sha256(card), *([old] if old is not None and ours else [])]
    parts = {"posterior": posterior, "network": Part(NETWORK, content, tensors)}
    write(folder / FILE, parts)
    if ours:
        write_atomically(folder / CARD, card)


def untied(state: dict[str, Any]) -> tuple[Weights, dict[str, str]]:
    """Each tensor once, and the names of those that are another one: name -> name.

    Raises
    ------
    InputError
        For an entry that is no tensor.

    Examples
    --------
    >>> a = nn.Linear(2, 2, bias=False)
    >>> kept, tied = untied(nn.Sequential(a, a).state_dict())
    >>> list(kept), tied
    (['0.weight'], {'1.weight': '0.weight'})
    """
    kept: Weights = {}
    tied: dict[str, str] = {}
    first: dict[Any, str] = {}
    storages: set[int] = set()
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor):
            raise InputError(
                f"the model's state {name!r} is a {type(tensor).__name__}, which safetensors do "
                "not hold: pass weights=False, and keep the weights elsewhere."
            )
        address = tensor.untyped_storage().data_ptr()
        same = (address, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() and same in first:
            tied[name] = first[same]
            continue
        first[same] = name
        kept[name] = tensor.clone() if address in storages else tensor
        storages.add(address)
    return kept, tied


def network_of(
    saved: SavedFile, source: str | Path, model: nn.Module | Callable[[], nn.Module] | None
) -> nn.Module | None:
    """Return the network with the weights of the file; None where the posterior needs no network.

    Raises
    ------
    FileFormatError
        If the file is damaged, or its weights are not those of such a network.
    InputError
        If the network is missing, or is none.
    """
    part = saved.part(NETWORK)
    with saved.checked():
        content = Fields(part.content, "network")
        kind, base = (
            content.text(name) if name in content else None for name in ("model", "base_model")
        )
        has_weights, tied = content.flag("weights"), content.inner("tied").content
    if model is None:
        if kind is not None:
            named = f" (base model: {base})" if base else ""
            raise InputError(
                f"{source} holds a posterior of a {kind}{named}: pass model=, that network or a "
                "function without arguments that makes it; its weights need not be loaded."
            )
        return None
    given = isinstance(model, nn.Module)
    network = unwrapped(model if given or not callable(model) else model())
    if not has_weights:
        return network if given else network.eval()
    try:
        tensors = dict(part.arrays)
        state = {**tensors, **{name: tensors[twin] for name, twin in tied.items()}}
        if given and _has(network, state):
            return network
        filled = deepcopy(network) if given else network
        filled.load_state_dict(state, assign=any(p.is_meta for p in network.parameters()))
    except MALFORMED as error:
        words = " ".join(str(error).split())
        raise FileFormatError(
            f"{source} holds the weights of a {kind}, which do not go into this "
            f"{type(network).__name__}: {words:.300}"
        ) from error
    return filled.eval()


def _has(network: nn.Module, state: Weights) -> bool:
    """Return whether a network has these weights already."""
    now = network.state_dict()
    if now.keys() != state.keys() or any(t.is_meta for t in now.values()):
        return False
    return all(torch.equal(state[name].to(tensor), tensor) for name, tensor in now.items())


def _card_hash(folder: Path) -> str | None:
    """Return the hash of the card in a folder, if there is one."""
    try:
        return _sha256((folder / CARD).read_bytes())
    except OSError:
        return None


def _our_cards(folder: Path) -> Sequence[str]:
    """Return the hashes of the cards that were written with the file of a folder."""
    try:
        part = SavedFile(folder / FILE, mapped=True).part(NETWORK)
        hashes: Sequence[str] = Fields(part.content).items("card_sha256")
    except FileFormatError:
        return ()
    return hashes


def _sha256(text: str | bytes) -> str:
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()

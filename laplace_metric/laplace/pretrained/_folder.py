"""A folder for hubs: what ``save`` writes, and beside it the weights of the model and a card."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric._utils import files
from laplace_metric._utils.version import __version__
from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.laplace._files import save_fitted
from laplace_metric.laplace._fitted import Fitted
from laplace_metric.laplace._settings import Settings
from laplace_metric.laplace.pretrained._card import Numbers, model_card, named_numbers
from laplace_metric.models import Precomputed, unwrapped

CONFIG = files.FileKind("config", "a folder of save_pretrained", 1)
CARD = "README.md"
Weights = dict[str, Tensor]


def save_folder(
    folder: Path,
    model: nn.Module,
    settings: Settings,
    fitted: Fitted,
    about: dict[str, str | None],
    numbers: Numbers | None,
    *,
    weights: bool,
) -> None:
    """Posterior, weights and ``config.json``, all or none; then the card.

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
        "settings": settings.to_json(),
        "numbers": named_numbers(numbers),
    }
    card = model_card(folder.resolve().name, content)
    ours = _is_ours(folder)
    content["card_sha256"] = _sha256(card)
    with files.together(folder):
        save_fitted(folder, settings, fitted)
        files.write(folder, content, tensors, CONFIG)
    if ours:
        files.write_atomically(folder / CARD, card)


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
    folder: Path, source: str | Path, model: nn.Module | Callable[[], nn.Module] | None
) -> nn.Module | None:
    """The network with the weights of the folder; None where the posterior needs no network.

    Raises
    ------
    FileFormatError
        If the folder is damaged, or its weights are not those of such a network.
    InputError
        If the network is missing, or is none.
    """
    content, tensors = files.read(folder, CONFIG)
    if model is None:
        _check_needs_none(content, source)
        return None
    given = isinstance(model, nn.Module)
    made = model if given or not callable(model) else model()
    network = unwrapped(made)
    if not content.get("weights"):
        return network if given else network.eval()
    try:
        state = {**tensors, **{name: tensors[twin] for name, twin in content["tied"].items()}}
        if given and _has(network, state):
            return network
        filled = deepcopy(network) if given else network
        filled.load_state_dict(state, assign=any(p.is_meta for p in network.parameters()))
    except files.MALFORMED as error:
        words = " ".join(str(error).split())
        raise FileFormatError(
            f"{source} holds the weights of a {content.get('model')}, which do not go into this "
            f"{type(network).__name__}: {words:.300}"
        ) from error
    return filled.eval()


def _check_needs_none(content: dict[str, Any], source: str | Path) -> None:
    if (kind := content.get("model")) is not None:
        base = content.get("base_model")
        named = f" (base model: {base})" if base else ""
        raise InputError(
            f"{source} holds a posterior of a {kind}{named}: pass model=, that network or a "
            "function without arguments that makes it; its weights need not be loaded."
        )


def _has(network: nn.Module, state: Weights) -> bool:
    """Whether a network has these weights already."""
    now = network.state_dict()
    if now.keys() != state.keys() or any(t.is_meta for t in now.values()):
        return False
    return all(torch.equal(state[name].to(tensor), tensor) for name, tensor in now.items())


def _is_ours(folder: Path) -> bool:
    """Whether there is no card yet, or the one that was written with the folder's config."""
    try:
        text = (folder / CARD).read_bytes()
    except OSError:
        return True
    try:
        return files.read_index(folder, CONFIG).get("card_sha256") == _sha256(text)
    except FileFormatError:
        return False


def _sha256(text: str | bytes) -> str:
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()

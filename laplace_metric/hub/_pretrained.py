"""Folders of ``save_pretrained``: found or fetched, with weights."""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric._utils.hub import without_retries
from laplace_metric._utils.validation import as_path
from laplace_metric.errors import FileFormatError, InputError, MissingPackageError
from laplace_metric.io import MALFORMED, Fields, Kind, Part, SavedFile, write
from laplace_metric.models import Precomputed
from laplace_metric.models._modules import unwrapped

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
    path = as_path("source", source)
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


# A folder for hubs: one file with the posterior and the weights of the model.


NETWORK = Kind("network", "a folder of save_pretrained", 1)
FILE = "laplace.safetensors"
Weights = dict[str, Tensor]


def save_folder(folder: Path, model: nn.Module, posterior: Part, *, weights: bool) -> None:
    """Write posterior and weights as one file.

    Raises
    ------
    InputError
        For a state that is no tensor.
    """
    tensors, tied = untied(model.state_dict()) if weights else ({}, {})
    kind = None if isinstance(model, Precomputed) else type(model).__name__
    content = {"model": kind, "weights": bool(tensors), "tied": tied}
    write(folder / FILE, {"posterior": posterior, "network": Part(NETWORK, content, tensors)})


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
        kind = content.text("model") if "model" in content else None
        has_weights, tied = content.flag("weights"), content.inner("tied").content
    if model is None:
        if kind is not None:
            raise InputError(
                f"{source} holds a posterior of a {kind}: pass model=, that network or a "
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

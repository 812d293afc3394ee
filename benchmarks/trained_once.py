"""Networks that more than one piece needs: the first that asks trains, the others read its file.

A file is of the code that trained it, and outlives changes of the package that no training reads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_model, save_model
from torch import nn

from benchmarks.definitions import training
from benchmarks.records import NETWORKS, plain, write_whole
from laplace_metric.errors import WriteError
from laplace_metric.io._lock import locked


def trained_once(
    network: nn.Module, train: Callable[[], Any], name: str, module: str, cache: Path
) -> bool:
    """Give a network the weights that ``train`` finds, from the cache if they are there.

    Parameters
    ----------
    network : nn.Module
        New weights; those of the training afterwards.
    train : function
        Trains ``network``.
    name : str
        What distinguishes this network from the others of ``module``: its data, loss, size, seed.
    module : str
        Module that trains; another state of its code, or of what it needs, trains again.
    cache : Path
        Folder of finished work.

    Returns
    -------
    bool
        True if it was trained here.
    """
    path = cache / NETWORKS / f"{plain(module, name)}-{training(module)}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    trained = False
    while not path.is_file():
        try:
            with locked(path.with_suffix(".lock")):
                if not path.is_file():
                    train()
                    write_whole(path, lambda part: save_model(network, str(part)))
                    trained = True
        except WriteError:  # another process trains it
            time.sleep(1)
    load_model(network, path)
    return trained

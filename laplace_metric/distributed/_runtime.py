"""The processes and the storage that the options of a fit ask for."""

from __future__ import annotations

from functools import partial

from torch import nn

from laplace_metric.distributed._fit_on_disk import Checkpoint, open_checkpoint
from laplace_metric.distributed._ranks import Ranks
from laplace_metric.laplace.fit._fit import HeadFit, StorageOf
from laplace_metric.laplace.fit._fit_options import FitOptions
from laplace_metric.laplace.fit._fit_storage import checkpoint_identity
from laplace_metric.laplace.fit._processes import ONE_PROCESS, Processes


def runtime_of(model: nn.Module, options: FitOptions) -> tuple[Processes, StorageOf | None]:
    """Return where a fit runs, and what opens its storage (None: memory).

    Parameters
    ----------
    model : nn.Module
        Model to fit; its weights are part of the identity of a checkpoint.
    options : FitOptions
        Options of the fit, of which ``distributed`` and ``checkpoint_dir`` decide.

    Raises
    ------
    InputError
        If a launcher started several processes that have no group yet.
    """
    processes: Processes = Ranks() if options.distributed else ONE_PROCESS
    folder = options.checkpoint_dir
    if folder is None:
        return processes, None

    def storage_of(fit: HeadFit) -> Checkpoint:
        identity = partial(checkpoint_identity, model, fit.located, fit.settings, options)
        return open_checkpoint(folder, identity, processes)

    return processes, storage_of

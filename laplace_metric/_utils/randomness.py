"""Random states of a training: seeded from one generator, the caller's put back afterwards.

Dropout and samplers draw from torch's global generator, the samplers and some miners of
pytorch-metric-learning from numpy's, some data sets from Python's.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from laplace_metric.errors import InputError


@contextmanager
def own_randomness(
    generator: torch.Generator | None, device: torch.device
) -> Iterator[torch.Generator]:
    """Seed the global states from ``generator`` inside, put them back outside.

    Yields the generator to draw weights from; None stands for a new one whose seed follows from
    torch's global state, so that ``torch.manual_seed`` decides it.

    Raises
    ------
    InputError
        For a generator that is not of the CPU.

    Examples
    --------
    >>> before = torch.get_rng_state()
    >>> with own_randomness(torch.Generator().manual_seed(0), torch.device("cpu")):
    ...     _ = torch.rand(3)
    >>> bool((torch.get_rng_state() == before).all())
    True
    """
    if generator is not None and generator.device.type != "cpu":
        raise InputError(f"generator is on {generator.device}: pass a CPU torch.Generator.")
    others = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            source = torch.Generator() if generator is None else generator
            if generator is None:
                source.manual_seed(_seed(torch.default_generator))
            _seed_globals(_seed(source), device)
            yield source
    finally:
        random.setstate(others[0])
        np.random.set_state(others[1])  # noqa: NPY002


def _seed(generator: torch.Generator) -> int:
    return int(torch.randint(2**62, (), generator=generator))


def _seed_globals(seed: int, device: torch.device) -> None:
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    random.seed(seed)

"""Random states seeded from one generator.

Dropout and samplers draw from torch's global generator, the samplers and some miners of
pytorch-metric-learning from numpy's, some data sets from Python's.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from laplace_metric._utils.validation import LARGEST, shown_argument
from laplace_metric.errors import InputError

Seed = torch.Generator | int | None
"""What every function that draws takes: a generator, the seed of a new one, or None."""


def as_generator(generator: Seed, name: str = "seed") -> torch.Generator | None:
    """Return the generator itself, a CPU generator of a seed, or None.

    Raises
    ------
    InputError
        For anything else, a bool among them, and seeds outside of [0, 2^63).

    Examples
    --------
    >>> as_generator(7).initial_seed(), as_generator(None)
    (7, None)
    """
    if generator is None or isinstance(generator, torch.Generator):
        return generator
    is_seed = isinstance(generator, (int, np.integer)) and not isinstance(generator, bool)
    if not is_seed or not 0 <= generator <= LARGEST:
        raise InputError(
            f"{shown_argument(name, generator)}: pass a torch.Generator, or a seed from 0 to "
            "2^63 - 1."
        )
    return torch.Generator().manual_seed(int(generator))


@contextmanager
def own_randomness(generator: Seed, device: torch.device) -> Iterator[torch.Generator]:
    """Seed the global states from ``generator`` inside, put them back outside.

    Yields the generator to draw weights from; None stands for a new one whose seed follows from
    torch's global state, so that ``torch.manual_seed`` decides it.

    Raises
    ------
    InputError
        For a generator that is not of the CPU, or no generator and no seed.

    Examples
    --------
    >>> before = torch.get_rng_state()
    >>> with own_randomness(torch.Generator().manual_seed(0), torch.device("cpu")):
    ...     _ = torch.rand(3)
    >>> bool((torch.get_rng_state() == before).all())
    True
    """
    generator = as_generator(generator)
    if generator is not None and generator.device.type != "cpu":
        raise InputError(f"generator is on {generator.device}: pass a CPU torch.Generator.")
    others = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            source = torch.Generator() if generator is None else generator
            if generator is None:
                source.manual_seed(_seed(torch.default_generator))
            seed = _seed(source)
            torch.default_generator.manual_seed(seed)
            if device.type == "cuda":
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002
            random.seed(seed)
            yield source
    finally:
        random.setstate(others[0])
        np.random.set_state(others[1])  # noqa: NPY002


def _seed(generator: torch.Generator) -> int:
    return int(torch.randint(2**62, (), generator=generator))

"""Every random state that a training draws from, taken from one generator and given back.

Dropout and samplers draw from torch's global generator, the samplers and some miners of
pytorch-metric-learning from numpy's, some data sets from Python's: a training runs on copies of
them, seeded from the caller's generator, and the caller's own states stay as they were.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from laplace_metric.errors import InputError
from laplace_metric.online.samplers import generators, restore_sampler, sampler_state, samplers


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
            own = torch.Generator() if generator is None else generator
            if generator is None:
                own.manual_seed(_seed(torch.default_generator))
            _seed_globals(_seed(own), device)
            yield own
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


def random_states(own: torch.Generator, loader: Any, device: torch.device) -> dict[str, Any]:
    """Every state as tensors and plain values; see ``restore_states``."""
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "generators": [g.get_state() for g in (own, *generators(loader))],
        "samplers": [sampler_state(sampler) for sampler in samplers(loader)],
        "numpy": [str(kind), torch.from_numpy(np.asarray(keys, dtype=np.int64)), *rest],
        "python": random.getstate(),
    }


def restore_states(
    states: dict[str, Any], own: torch.Generator, loader: Any, device: torch.device
) -> None:
    """Put back what ``random_states`` took."""
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)
    for generator, state in zip((own, *generators(loader)), states["generators"], strict=True):
        generator.set_state(state)
    for sampler, numbers in zip(samplers(loader), states["samplers"], strict=True):
        restore_sampler(sampler, numbers)
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    random.setstate(states["python"])

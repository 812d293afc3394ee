"""Every random state that a training draws from, taken and put back: what a resumed run needs."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from laplace_metric.online.samplers import generators, restore_sampler, sampler_state, samplers


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

"""What is trained on, what is asked, and what is out of distribution: every task by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from benchmarks.tasks import frozen, grey, pretrained
from benchmarks.tasks.task import Part, Task, Workspace

__all__ = ["READS", "TASKS", "Part", "Task", "Workspace", "build"]

FIXED: dict[str, Callable[[Workspace], Task]] = {
    "digits": grey.digits,
    "digits-unseen": grey.digits_unseen,
    "photographs": grey.patches,
    "fashion-mnist": grey.fashion,
    "cifar10": frozen.cifar10,
    "cifar10-unseen": frozen.cifar10_unseen,
    "cub": frozen.cub,
}
FOLDED: dict[str, Callable[[Workspace, int], Task]] = {
    "cifar10h-soft": frozen.cifar10h_soft,
}
HALVED: dict[str, Callable[[Workspace, int], Task]] = {
    "pretrained-digits": pretrained.digits,
    "pretrained-cifar10": pretrained.cifar10,
    "pretrained-text": pretrained.texts,
    "pretrained-cub-unseen": pretrained.cub_unseen,
}
READS = {"pretrained-cub-unseen": "cub"}
"""The image set of a task that has another name than it."""
SEEDED = {**FOLDED, **HALVED}
TASKS = (*FIXED, *SEEDED)


@lru_cache(maxsize=4)
def build(name: str, space: Workspace, seed: int) -> Task:
    """The task, read from the data folder and the cache; its part of a seed where it has such."""
    return FIXED[name](space) if name in FIXED else SEEDED[name](space, seed)

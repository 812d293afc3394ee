"""Every task by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from benchmarks.tasks import frozen, grey, human, pretrained
from benchmarks.tasks.task import Task
from benchmarks.tasks.workspace import Workspace

FIXED: dict[str, Callable[[Workspace], Task]] = {
    "digits": grey.digits,
    "digits-unseen": grey.digits_unseen,
    "photographs": grey.patches,
    "fashion-mnist": grey.fashion,
    "omniglot": grey.omniglot,
    "cifar10": frozen.cifar10,
    "cifar10-unseen": frozen.cifar10_unseen,
    "cub200": frozen.cub200,
    "lfw": frozen.lfw,
}
FOLDED: dict[str, Callable[[Workspace, int], Task]] = {
    "cifar10h-soft": human.soft,
    "cifar10h-hard": human.hard,
}
HALVED: dict[str, Callable[[Workspace, int], Task]] = {
    "pretrained-digits": pretrained.digits,
    "pretrained-cifar10": pretrained.cifar10,
    "pretrained-omniglot": pretrained.omniglot,
    "pretrained-text": pretrained.texts,
}
SEEDED = {**FOLDED, **HALVED}
TASKS = (*FIXED, *SEEDED)


@lru_cache(maxsize=4)
def build(name: str, space: Workspace, seed: int) -> Task:
    """The task, read from the data folder and the cache; its part of a seed where it has such."""
    return FIXED[name](space) if name in FIXED else SEEDED[name](space, seed)

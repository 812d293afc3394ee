"""Every task by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from benchmarks.tasks import frozen, grey, human
from benchmarks.tasks.task import Task
from benchmarks.tasks.workspace import Workspace

FIXED: dict[str, Callable[[Workspace], Task]] = {
    "digits": grey.digits,
    "fashion-mnist": grey.fashion,
    "omniglot": grey.omniglot,
    "cifar10": frozen.cifar10,
    "cifar10-unseen": frozen.cifar10_unseen,
}
FOLDED: dict[str, Callable[[Workspace, int], Task]] = {
    "cifar10h-soft": human.soft,
    "cifar10h-hard": human.hard,
}
TASKS = (*FIXED, *FOLDED)


@lru_cache(maxsize=4)
def build(name: str, space: Workspace, seed: int) -> Task:
    """The task, read from the data folder and the cache; a fold of it where it has folds."""
    return FIXED[name](space) if name in FIXED else FOLDED[name](space, seed)

"""Where a training stands, and who is told of it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Progress:
    """Where a training stands; plain numbers, so that it can be written down.

    Parameters
    ----------
    epoch, step, steps : int
        Finished epochs, finished steps of the epoch that runs now, and of all.
    total : float
        Loss of the running epoch, summed over its ``seen`` points.
    n_points : int
        Points of the last whole epoch; 0 or an estimate before that.
    losses : list of float
        Mean loss of each finished epoch, weighted by batch size.

    Examples
    --------
    >>> progress = Progress()
    >>> progress.add(2.0, 3)
    >>> progress.finish_epoch()
    >>> progress.losses, progress.n_points, progress.step
    ([2.0], 3, 0)
    """

    epoch: int = 0
    step: int = 0
    steps: int = 0
    total: float = 0.0
    seen: int = 0
    n_points: int = 0
    losses: list[float] = field(default_factory=list)

    @property
    def mean_loss(self) -> float:
        """Of the running epoch so far; NaN before its first step."""
        return self.total / self.seen if self.seen else float("nan")

    def add(self, loss: float, n_points: int) -> None:
        """A step is done."""
        self.total += loss * n_points
        self.seen += n_points
        self.step += 1
        self.steps += 1

    def finish_epoch(self) -> None:
        """An epoch is done."""
        self.losses.append(self.mean_loss)
        self.n_points = self.seen
        self.epoch, self.step, self.total, self.seen = self.epoch + 1, 0, 0.0, 0


class Watcher:
    """Is told what happens in a training; this one does nothing."""

    def epoch_begins(self, progress: Progress) -> None:
        """Before the loader is asked for the first batch of an epoch."""

    def caught_up(self, progress: Progress) -> None:
        """A resumed epoch has skipped the batches of its finished steps."""

    def step_done(self, progress: Progress) -> None:
        """After every step."""

    def epoch_done(self, progress: Progress) -> None:
        """After the scheduler's step."""

    def status(self, progress: Progress) -> str:
        """Shown beside the bar."""
        return ""

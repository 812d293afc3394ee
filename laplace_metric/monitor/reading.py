"""``Reading``: what a full window says."""

from __future__ import annotations

from dataclasses import dataclass

from laplace_metric.monitor.martingale import Alarm
from laplace_metric.monitor.windows import Move


@dataclass(frozen=True)
class Reading:
    """One window of the stream against the reference.

    Parameters
    ----------
    first, last : int
        Its queries, counted from 1.
    level : float
        Of the window's test.
    moves : dict of name to Move
    evidence : dict of name to float
        log10 of the martingale after the window: 2 are odds of 100 to 1 against "no drift since
        the beginning".
    alarms : tuple of Alarm
        All so far, the earliest first.

    Examples
    --------
    >>> import torch
    >>> from laplace_metric.monitor import Monitor
    >>> monitor = Monitor({"uncertainty": torch.arange(1000.0)}, window=100)
    >>> print(*monitor.update({"uncertainty": torch.arange(900.0, 1000.0)}))
    queries 1 to 100: MOVED
      uncertainty: larger, median 949.5 (reference 499.5), 50.0% above the reference's 95% \
quantile, p = 6e-91
      ALARM at query 10: too many large values of uncertainty since about query 1
    """

    first: int
    last: int
    level: float
    moves: dict[str, Move]
    evidence: dict[str, float]
    alarms: tuple[Alarm, ...]

    @property
    def moved(self) -> tuple[str, ...]:
        """The quantities in which this window differs from the reference."""
        return tuple(name for name, move in self.moves.items() if move.p_value <= self.level)

    def __str__(self) -> str:
        title = "MOVED" if self.moved else "no difference seen"
        lines = [f"queries {self.first:,} to {self.last:,}: {title}"]
        lines += [f"  {name}: {self._words(name)}" for name in self.moves]
        return "\n".join([*lines, *(f"  {alarm}" for alarm in self.alarms)])

    def _words(self, name: str) -> str:
        move = self.moves[name]
        upper = move.above - move.below >= 0
        share, side = (move.above, "above") if upper else (move.below, "below")
        quantile = "95%" if upper else "5%"
        return (
            f"{move.direction if name in self.moved else 'as before'}, median "
            f"{move.now.median:.4g} (reference {move.then.median:.4g}), {share:.1%} {side} the "
            f"reference's {quantile} quantile, p = {move.p_value:.1g}"
        )

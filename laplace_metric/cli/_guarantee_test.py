"""Exact test of a guaranteed precision by answers that did not calibrate it.

    contradicted  if  P(Bin(n, target) <= k) <= LEVEL
    confirmed     if  P(Bin(n, target) >= k) <= LEVEL

A guarantee bounds the precision from below, so both tests are one-sided; answers count as
independent of each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.special import bdtr, bdtrc

from laplace_metric.cli._share import Share

LEVEL = 0.05
CONFIRMED, OPEN, CONTRADICTED = "confirmed", "open", "contradicted"


@dataclass(frozen=True)
class GuaranteeTest:
    """Right answers against the precision that was guaranteed.

    Parameters
    ----------
    right : Share
        Right answers, of all answers.
    guaranteed : float in (0, 1)
        Precision that was guaranteed.

    Examples
    --------
    >>> [GuaranteeTest(Share(k, 123), 0.9).outcome for k in (100, 105, 118)]
    ['contradicted', 'open', 'confirmed']
    >>> round(GuaranteeTest(Share(105, 123), 0.9).p, 3)
    0.065
    """

    right: Share
    guaranteed: float

    @property
    def fewer(self) -> float:
        """Chance of at most as many right answers, at the guaranteed precision."""
        return float(bdtr(self.right.k, self.right.n, self.guaranteed))

    @property
    def more(self) -> float:
        """Chance of at least as many right answers, at the guaranteed precision."""
        return float(bdtrc(self.right.k - 1, self.right.n, self.guaranteed))

    @property
    def p(self) -> float:
        """P value of the test on the side of the obtained precision."""
        return min(self.fewer, self.more)

    @property
    def outcome(self) -> str:
        """Outcome at ``LEVEL``: CONFIRMED, CONTRADICTED, or OPEN, with too few answers to tell."""
        if self.fewer <= LEVEL:
            return CONTRADICTED
        return CONFIRMED if self.more <= LEVEL else OPEN

    @property
    def least(self) -> int:
        """Least number of answers that could confirm the guarantee, if all of them are right."""
        return math.ceil(math.log(LEVEL) / math.log(self.guaranteed))

    @property
    def p_text(self) -> str:
        """P value as a page shows it.

        Examples
        --------
        >>> GuaranteeTest(Share(105, 123), 0.9).p_text, GuaranteeTest(Share(5, 90), 0.9).p_text
        ('P = 0.065', 'P < 0.001')
        """
        return "P < 0.001" if self.p < 0.001 else f"P = {self.p:.2g}"

"""Does a text include an image? ``inc`` as a probability, compared with random pairs.

``inc`` of one pair means nothing by itself: its level follows the widths of both. So it is compared
with pairs that belong together and as many random ones: the probability is a logistic regression
between the two (Platt 1999), at even odds, and the control the share of random pairs that reach the
same score.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.image_text._pairs import ImageTextPairs
from laplace_metric.io import saved

# Does a text include an image? ``inc`` as a probability, compared with random pairs.

WEAK = 1e4
"""Inverse strength of the penalty: only there so that separable scores have a solution."""
MOST_CONTROLS = 10_000
BLOCK = 1024
"""Pairs whose texts are drawn at once."""


@dataclass(frozen=True)
class Inclusion:
    """Inclusion of B pairs, as a score and as a probability.

    Parameters
    ----------
    score : Tensor [B]
        Inclusion score ``inc / D`` in nats a dimension.
    probability : Tensor [B]
        Probability that the pair belongs together, if half of all pairs do.
    control : Tensor [B]
        Share of random pairs that score at least as high, in (0, 1].
    """

    score: Float[Tensor, " B"]
    probability: Float[Tensor, " B"]
    control: Float[Tensor, " B"]


@dataclass(frozen=True)
class InclusionCalibration:
    """A logistic regression on ``inc / D``, and the scores of random pairs.

    Parameters
    ----------
    slope, offset : float
        Slope and offset of the logit.
    controls : Tensor [R], float64
        Scores of random pairs, ascending.
    auroc : float
        AUROC of own against random pairs, on the pairs of the fit.

    Examples
    --------
    >>> calibration = InclusionCalibration.of(torch.tensor([2.0, 3.0]), torch.tensor([0.0, 2.5]))
    >>> answer = calibration(torch.tensor([-1.0, 2.2, 9.0]))
    >>> answer.control, bool((answer.probability.diff() > 0).all())
    (tensor([1.0000, 0.6667, 0.3333], dtype=torch.float64), True)
    """

    slope: float
    offset: float
    controls: Float64[Tensor, " R"]
    auroc: float = saved(0, 1)

    def check_saved(self) -> None:
        """Raise FileFormatError for controls of a file that are not in ascending order."""
        if bool((self.controls.diff() < 0).any()):
            raise FileFormatError("inclusion/controls are not in ascending order")

    @classmethod
    def of(cls, own: Float[Tensor, " P"], random: Float[Tensor, " R"]) -> InclusionCalibration:
        """Fit to the scores of pairs that belong together and of pairs that do not."""
        from sklearn.linear_model import LogisticRegression
        from sklearn.metrics import roc_auc_score

        scores = torch.cat([own, random]).double().cpu().numpy()
        is_own = np.repeat([1, 0], [len(own), len(random)])
        weight = np.where(is_own, 1 / len(own), 1 / len(random)) * len(scores) / 2
        centre, scale = float(scores.mean()), float(scores.std()) or 1.0
        x = (scores[:, None] - centre) / scale
        fit = LogisticRegression(C=WEAK, max_iter=1000).fit(x, is_own, sample_weight=weight)
        slope = float(fit.coef_[0, 0]) / scale
        offset = float(fit.intercept_[0]) - slope * centre
        controls = random.double().cpu().sort().values
        return cls(
            slope,
            offset,
            controls[:: -(-len(controls) // MOST_CONTROLS)],
            float(roc_auc_score(is_own, scores)),
        )

    def __call__(self, score: Float[Tensor, " B"]) -> Inclusion:
        """Return the probability and the control of scores."""
        exact = score.double()
        below = torch.searchsorted(self.controls.to(exact.device), exact.contiguous())
        n = len(self.controls)
        control = (n - below + 1) / (n + 1)
        return Inclusion(score, torch.sigmoid(self.slope * exact + self.offset), control.double())


def random_partners(
    pairs: ImageTextPairs, generator: torch.Generator | None
) -> tuple[Int[Tensor, " R"], Int[Tensor, " R"]]:
    """Draw for each pair its image and a random text that is not its own, if there is one.

    Raises
    ------
    InputError
        If every image has every text.
    """
    images, texts, every = [], [], torch.arange(pairs.n_texts)
    for i in pairs.pairs[:, 0].split(BLOCK):
        free = (~pairs.match(i, every)).float()
        rows = free.any(1).nonzero().flatten()
        if len(rows):
            images.append(i[rows])
            texts.append(torch.multinomial(free[rows], 1, generator=generator).squeeze(1))
    if not images:
        raise InputError("every image has every text: there is no random pair to compare with.")
    return torch.cat(images), torch.cat(texts)

"""Detectors that read the logits of a linear classifier in addition to the vectors."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from baselines.base.detector import Detector
from baselines.base.parts import FittedParts
from baselines.base.settings import UNSAVED
from laplace_metric.errors import InputError, LabelError

if TYPE_CHECKING:
    from typing_extensions import Self


class FittedClassifier(Protocol):
    """Model that ``of`` reads: a fitted ``CrossEntropy``, say."""

    model: nn.Module
    spherical: bool

    @property
    def fitted_(self) -> FittedParts:
        """Head and sizes."""

    @property
    def classifier(self) -> nn.Linear:
        """Raw embeddings [B, Z] -> logits [B, C]."""


@dataclass(eq=False, kw_only=True)
class ClassifierDetector(Detector):
    """Subclasses take ``linear_classifier`` in ``learn`` and keep it.

    Parameters
    ----------
    classifier : nn.Linear or None
        Linear layer that gives logits [B, C] of the vectors [B, Z]. None, the default:
        scikit-learn's logistic regression, fitted to the standardised vectors. ``of(method)`` takes
        that of a fitted ``CrossEntropy``.
    """

    classifier: nn.Linear | None = field(default=None, metadata=UNSAVED)

    @classmethod
    def of(cls, method: FittedClassifier, **settings: Any) -> Self:
        """Build on a fitted classifier: its model (with an appended head), head and weights."""
        head, model = method.fitted_.head, method.model
        return cls(
            model if head.parts else nn.Sequential(model, head.module),
            head=head.place if head.parts else head.module,
            spherical=method.spherical,
            classifier=method.classifier,
            **settings,
        )

    def linear_classifier(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return W [C, Z] and b [C] in float64, for vectors [N, Z] and class numbers [N].

        Raises
        ------
        InputError
            If the classifier that was passed does not fit the vectors.
        LabelError
            Without a classifier, for a single class.
        """
        if self.classifier is None:
            return logistic_regression(x.double(), labels)
        weight = self.classifier.weight.detach()
        if weight.shape[1] != x.shape[1]:
            raise InputError(
                f"classifier takes {weight.shape[1]} numbers, the model's {self.on} has "
                f"{x.shape[1]}: choose another `on`, or pass the classifier of this model."
            )
        bias = self.classifier.bias
        return weight.to(x.device).double(), (
            weight.new_zeros(len(weight)) if bias is None else bias.detach()
        ).to(x.device).double()


def logistic_regression(x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return W [C, Z] and b [C] of a linear classifier of vectors [N, Z]; two classes get +-w/2.

    Raises
    ------
    LabelError
        If the labels hold a single class.
    """
    if int(labels.max()) == 0:
        raise LabelError("labels hold a single class: give two or more, or pass a classifier.")
    scaler = StandardScaler().fit(x.cpu().numpy())
    fit = LogisticRegression(max_iter=1000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a classifier that is not fully converged is one too
        fit.fit(scaler.transform(x.cpu().numpy()), labels.cpu().numpy())
    weight, bias = torch.from_numpy(fit.coef_), torch.from_numpy(fit.intercept_)
    if len(weight) == 1:
        weight, bias = torch.cat([-weight, weight]) / 2, torch.cat([-bias, bias]) / 2
    weight = weight / torch.from_numpy(scaler.scale_)
    bias = bias - weight @ torch.from_numpy(scaler.mean_)
    return weight.to(x), bias.to(x)

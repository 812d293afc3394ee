"""Fit a posterior to a part of the items, from what entered the head.

Run a model once over items, and keep what it gives at a head.
"""

from __future__ import annotations

import copy
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from laplace_metric._utils.progress import tqdm
from laplace_metric.curvature._eigenbases import KroneckerEigenbasis
from laplace_metric.errors import LaplaceMetricWarning
from laplace_metric.heads._capture import SeenInputs, appended_activations, capture
from laplace_metric.heads._earlier_layers import entering_layers
from laplace_metric.heads._linear import LinearJacobian
from laplace_metric.heads._locate import locate_head
from laplace_metric.heads._located import HeadActivations, LocatedHead
from laplace_metric.heads._repeatable import check_repeatable
from laplace_metric.inputs._inputs import BATCH, Batch, Inputs
from laplace_metric.inputs._rows_in_errors import rows_before
from laplace_metric.laplace import Fitted, Settings
from laplace_metric.laplace.fit._fit import fit_posterior, uses_lengths
from laplace_metric.laplace.fit._fit_options import FitOptions, Whole
from laplace_metric.laplace.fit._spanned import SpannedSpace
from laplace_metric.models._call_model import to_device
from laplace_metric.models._modules import device_of
from laplace_metric.search._protocols import FittedEmbedder
from laplace_metric.search.classes._class_model import WIDEST

HEAD = "head"


class RefittableEmbedder(FittedEmbedder, Protocol):
    """Fitted embedder with settings by which another posterior can be fitted."""

    @property
    def settings(self) -> Settings:
        """Settings of a fit."""


@dataclass(frozen=True)
class HeadEmbedder:
    """A model with a posterior over its head, and the settings to fit another one."""

    model: nn.Module
    fitted_: Fitted
    settings: Settings


class _Directions(nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        return nn.functional.normalize(z, dim=-1)


@dataclass(frozen=True)
class Refits:
    """Posteriors of parts of the items, from what entered the head.

    Of fewer items than the head has inputs, the head is fitted in the space that the items span
    (``SpannedSpace``). Directions outside of it have no curvature and no item, so that a posterior
    with a Kronecker basis, which follows rotations, predicts the same of every item; and so do
    near, far and the class model, whose ridge averages over all D directions (``Whole.width``).

    Parameters
    ----------
    embedder : RefittableEmbedder
        Model with a posterior of all items, and the settings to fit others.
    model : nn.Module
        The head alone.
    features : Tensor [N, D] or [N, N]
        Inputs of ``model``, of all items.
    whole : Whole
        Values that a part takes over from the fit to all items.
    row_width : int or None
        Numbers of a row of the whole's ``Encoded.basis_inputs``, where these have fewer; else None.
    """

    embedder: RefittableEmbedder
    model: nn.Module
    features: Tensor
    whole: Whole
    row_width: int | None

    @classmethod
    def of(
        cls, embedder: RefittableEmbedder, features: Float[Tensor, "N D"], *, reduce: bool = True
    ) -> Refits:
        """Choose the space in which parts of these head inputs are fitted.

        Without ``reduce`` it is that of all inputs.
        """
        fitted = embedder.fitted_
        whole = Whole(features.shape[1], uses_lengths(fitted))
        module, jacobian, row_width = fitted.head.module, fitted.jacobian, None
        if reduce and _follows_rotations(fitted) and len(features) < features.shape[1]:
            assert isinstance(jacobian, LinearJacobian)
            space, row_width = SpannedSpace.of(jacobian, features), jacobian.layout.n_columns
            features, module = space.coordinates(features), space.module()
        return cls(embedder, _head_alone(module, fitted.head), features, whole, row_width)

    def seen(
        self, rows: Int[Tensor, " n"], head: LocatedHead, earlier: Mapping[str, Tensor] | None
    ) -> Inputs:
        """Return the items at ``rows`` as inputs of ``model``.

        Parameters
        ----------
        rows : Tensor [n]
            Rows of the items.
        head : LocatedHead
            Head of ``model``.
        earlier : mapping of name to Tensor [N, E], or None
            Rows of all items that entered earlier layers, which ``model`` does not have.
        """
        if not earlier:
            parts = rows.split(BATCH)  # taken when they are read: no copy of all
            return Inputs(
                "features",
                lambda: (Batch(self.features[part]) for part in parts),
                count=len(rows),
                n_batches=len(parts),
            )
        features = self.features[rows]
        activations = replace(
            capture(self.model, head, features),
            earlier={name: x[rows] for name, x in earlier.items()},
        )
        inputs = SeenInputs(head, len(rows), partial(_itself, activations))
        return replace(Inputs.of_batches("features", [(inputs, None)]), count=len(rows))

    def fit(
        self, rows: Int[Tensor, " n"] | None, codes: Int[Tensor, " n"], *, near_far: bool = True
    ) -> HeadEmbedder:
        """Fit to the items at ``rows``, of classes ``codes``; None: to all items.

        Without ``near_far`` the fit has no epistemic numbers.
        """
        features = self.features if rows is None else self.features[rows]
        pairs = zip(features.split(BATCH), codes.split(BATCH), strict=True)
        inputs = Inputs.of_batches("features", pairs, labelled=True)
        # of the size of the whole fit: what a part chooses would move each fold's numbers
        posterior = self.embedder.fitted_.posterior
        options = FitOptions(whole=self.whole._replace(near_far=near_far))
        settings = replace(
            self.embedder.settings,
            prior_precision=posterior.prior_precision,
            temperature=posterior.temperature,
        )
        with warnings.catch_warnings():  # the fit to all items has told them
            warnings.simplefilter("ignore", LaplaceMetricWarning)
            fitted = fit_posterior(self.model, HEAD, inputs, settings, options)
        posterior = replace(fitted.posterior, prior_weights=posterior.prior_weights)
        predictive_prior = self.embedder.fitted_.predictive_prior
        fitted = replace(fitted, posterior=posterior, predictive_prior=predictive_prior)
        return HeadEmbedder(self.model, fitted, settings)


def _follows_rotations(fitted: Fitted) -> bool:
    """Return whether all that is learnt of head inputs is the same in any orthonormal basis."""
    head, posterior = fitted.jacobian, fitted.posterior
    kron = isinstance(posterior.basis, KroneckerEigenbasis) and posterior.prior_weights is None
    if not kron or fitted.near_far is None or not head.linear:
        return False
    return head.layouts[0].n_columns <= WIDEST


def _head_alone(module: nn.Module, head: LocatedHead) -> nn.Sequential:
    """Return the head alone, with the normalisation of the model."""
    if next(module.parameters()).dtype not in (torch.float32, torch.float64):
        module = copy.deepcopy(module).float()  # what entered it was kept in float32
    parts = [(HEAD, module)]
    parts += [("directions", _Directions())] if head.normalized else []
    alone = nn.Sequential(OrderedDict(parts))
    alone.training = False  # not of the head, which is the user's own; a fit evaluates all the same
    return alone


def seen_at(
    model: nn.Module,
    head: LocatedHead | nn.Module | str | None,
    inputs: Sequence[Any],
    *,
    layers: Sequence[str] | None = (),
    progress: bool,
) -> list[SeenInputs]:
    """Run the model once over batches of inputs and return what it gives at a head.

    Parameters
    ----------
    head : LocatedHead, or what ``locate_head`` takes
        The head, or how it is found in the first batch.
    inputs : sequence of batches
        Batches that the model takes.
    layers : sequence of str, or None
        Names of earlier layers whose inputs are kept, too; None: those found in the first batch.
        Default: none.
    progress : bool
        Show a progress bar.
    """
    device, seen = device_of(model), list[SeenInputs]()
    start = 0
    for batch in tqdm(inputs, desc="Embedding", disable=not progress):
        there = to_device(batch, device)
        with rows_before(start):
            if not isinstance(head, LocatedHead):
                with entering_layers(model, layers, there) as entered:
                    head, activations = locate_head(model, there, head)
                check_repeatable(model, head, there, activations)
                if entered.order:
                    earlier = entered.before(head, activations.features)
                    activations = replace(activations, earlier=earlier)
            else:
                activations = capture(model, head, there, layers)
            layers = tuple(activations.earlier) if start == 0 else layers
        start += len(activations.features)
        look: Callable[[], HeadActivations] = partial(_itself, activations)
        if head.parts is None and not activations.earlier:
            # a product again takes less than a copy of what comes out of all items
            look = partial(appended_activations, head.module, activations.features)
        seen.append(SeenInputs(head, len(activations.features), look))
    return seen


def _itself(activations: HeadActivations) -> HeadActivations:
    return activations

"""A fit in the space that the points span, where the head has more inputs than there are points.

With Q an orthonormal basis of the space of the N points and Q_0 one of what is orthogonal to it,

    h = Q (Q' h)      z = W h + b = (W Q) (Q' h) + b      H = S (x) A,    A = Q A_N Q'

so that the head W Q of N inputs has the curvature of the head of D in coordinates, and every
direction of Q_0 the eigenvalue 0. Passes, decompositions and draws cost O(N^3) instead of O(D^3).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from laplace_metric._utils.precision import without_rounding
from laplace_metric.curvature._eigenbases import KroneckerEigenbasis, KroneckerEigenblock
from laplace_metric.curvature._structures import KronCurvature, KroneckerFactors
from laplace_metric.familiarity._fit_set import FEW
from laplace_metric.heads._jacobian import HeadJacobian
from laplace_metric.heads._linear import LinearJacobian
from laplace_metric.heads._locate import linear_layer
from laplace_metric.laplace._fitted import Fitted
from laplace_metric.models._feature_store import FeatureStore


@dataclass(frozen=True)
class SpannedSpace:
    """The space that the inputs of a linear head span.

    Parameters
    ----------
    head : LinearJacobian
        Head of D inputs.
    basis : Tensor [D, N] float64
        Q, with orthonormal columns.
    """

    head: LinearJacobian
    basis: Tensor

    @classmethod
    def of(cls, head: LinearJacobian, features: Float[Tensor, "N D"]) -> SpannedSpace:
        """Return the space of N < D inputs of a head."""
        return cls(head, torch.linalg.qr(features.double().mT).Q)

    def coordinates(self, features: Float[Tensor, "n D"]) -> Float[Tensor, "n N"]:
        """Return Q' h of each input h in the space; 0 where only rounding is left of it.

        Q' h of the points that made Q is triangular. Its other half would be rounding errors of
        1e-18, whose products are subnormal, and take fifty times as long.
        """
        h = features.double()
        return without_rounding(h @ self.basis, h.norm(dim=1, keepdim=True)).to(features)

    def module(self) -> nn.Linear:
        """Return the head of coordinates, W Q and b."""
        weight, bias = (self.head.weight.double() @ self.basis).to(self.head.weight), self.head.bias
        return linear_layer(weight, bias)

    def store(self, store: FeatureStore) -> FeatureStore:
        """Return the coordinates of all points of a store, with their labels."""
        rows = torch.arange(len(store), device=store.device)
        return FeatureStore.of(self.coordinates(store.rows(rows)), store.labels)

    def lifted(self, curvature: KronCurvature) -> KronCurvature:
        """Return the curvature of the head of D inputs, from that of the head of coordinates."""
        (factors,), layout = curvature.factors, self.head.layout
        basis, values = curvature.refined or curvature.eigenbasis()
        (block,) = basis.blocks
        n_unseen = layout.n_columns - len(block.right)
        inside, outside = self._directions()
        right = torch.cat([inside @ block.right, outside], 1)
        whole = nn.functional.pad(block.fold(values), (0, n_unseen)).flatten()
        eigenbasis = KroneckerEigenbasis((KroneckerEigenblock(block.left, right, layout),))
        seen = KroneckerFactors(factors.left, inside @ factors.right @ inside.mT, layout)
        return KronCurvature((seen,), (eigenbasis, whole))

    def _directions(self) -> tuple[Float[Tensor, "A n"], Float[Tensor, "A m"]]:
        """Return bases of the space and of what is orthogonal to it, of inputs [h, 1] if padded."""
        whole = torch.linalg.qr(self.basis, mode="complete").Q
        inside, outside = self.basis, whole[:, self.basis.shape[1] :]
        if not self.head.layout.bias:
            return inside, outside
        return torch.block_diag(inside, inside.new_ones(1, 1)), nn.functional.pad(
            outside, (0, 0, 0, 1)
        )

    def reduced(
        self, fitted: Fitted, head: HeadJacobian, curvature: KronCurvature, positivity: str
    ) -> Fitted:
        """Return a fit as the head of coordinates sees it: the same embeddings, and draws of them.

        Parameters
        ----------
        fitted : Fitted
            Fit of the head of D inputs.
        head : HeadJacobian
            The head of coordinates.
        curvature : KronCurvature
            The curvature of ``head``.
        positivity : str
            Rule that makes its eigenvalues positive, "clip" or "absolute".
        """
        spectral = curvature.decompose(positivity)
        posterior = replace(
            fitted.posterior,
            mean=head.parameters,
            curvature=spectral,
            prior_weights=None,  # one layer: they are 1
        )
        return replace(fitted, jacobian=head, posterior=posterior)


def has_few_points(head: HeadJacobian, structure: str, n_points: int) -> bool:
    """Return True if points are so few that they are fitted in the space that they span.

    The structure must follow rotations of the inputs: kron does, diag does not.
    """
    if structure != "kron" or not head.linear:
        return False
    return n_points <= FEW * head.layouts[0].n_features

"""Expected likelihood kernels (Kirchhof et al. 2022) of von Mises-Fisher embeddings.

The similarity of two embeddings is the likelihood that they share a point,

    s(p, q) = log int p(z) q(z) dz = log C(k1) + log C(k2) - log C(|k1 mu1 + k2 mu2|)

in a softmax over the class distributions rho_c ("proxies", 2023b eq. 3), or over the other items of
the batch ("pairs", 2023a eq. 55).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from baselines.base import Directional, Sizes
from baselines.base.pairs import check_rows, pair_log_probabilities
from baselines.distributions import VonMisesFisher, pairwise_log_expected_likelihood
from laplace_metric._utils.validation import check_name

FORMS = ("proxies", "pairs")


class ELKPairLoss(nn.Module):
    """``loss(embeddings, labels, concentration)``: InfoNCE with ``t s(p_i, p_j)``, in nats.

    Parameters
    ----------
    inverse_temperature : float > 0
        Inverse temperature t, the kappa_pos of the paper.

    Examples
    --------
    >>> z, y = nn.functional.normalize(torch.randn(6, 3), dim=1), torch.arange(6) % 2
    >>> bool(ELKPairLoss()(z, y, torch.full((6,), 50.0)) > 0)
    True
    """

    def __init__(self, *, inverse_temperature: float = 1.0) -> None:
        super().__init__()
        self.inverse_temperature = inverse_temperature

    def forward(self, embeddings: Tensor, labels: Tensor, concentration: Tensor) -> Tensor:
        """Map directions [B, Z] and concentrations [B] to a scalar."""
        check_rows(embeddings, labels, concentration=concentration)
        mu = nn.functional.normalize(embeddings, dim=-1)
        posterior = VonMisesFisher(mu, concentration, validate_args=False)
        similarity = pairwise_log_expected_likelihood(posterior, posterior)
        return -pair_log_probabilities(self.inverse_temperature * similarity, labels).mean()


class ELKProxyLoss(nn.Module):
    """``loss(embeddings, labels, concentration)``: cross-entropy of ``s(p_i, rho_c)``, in nats.

    Parameters
    ----------
    n_classes, embedding_size : int
        Sizes C of the classes and Z of the embedding; labels are 0..C-1.
    class_concentration : float > 0
        Initial concentration of every rho_c (t in URL, 8 to 64); they are learnt.

    Examples
    --------
    >>> z, y = nn.functional.normalize(torch.randn(6, 3), dim=1), torch.arange(6) % 2
    >>> bool(ELKProxyLoss(2, 3)(z, y, torch.full((6,), 50.0)) > 0)
    True
    """

    def __init__(
        self, n_classes: int, embedding_size: int, *, class_concentration: float = 16.0
    ) -> None:
        super().__init__()
        self.direction = nn.Parameter(torch.randn(n_classes, embedding_size))
        start = torch.full((n_classes,), class_concentration).log()
        self.log_concentration = nn.Parameter(start)

    def classes(self) -> VonMisesFisher:
        """Return rho_c, C distributions."""
        mu = nn.functional.normalize(self.direction, dim=-1)
        return VonMisesFisher(mu, self.log_concentration.exp(), validate_args=False)

    def forward(self, embeddings: Tensor, labels: Tensor, concentration: Tensor) -> Tensor:
        """Map directions [B, Z] and concentrations [B] to a scalar."""
        check_rows(embeddings, labels, concentration=concentration)
        mu = nn.functional.normalize(embeddings, dim=-1)
        posterior = VonMisesFisher(mu, concentration, validate_args=False)
        similarity = pairwise_log_expected_likelihood(posterior, self.classes())
        return nn.functional.cross_entropy(similarity, labels)


@dataclass(eq=False, kw_only=True)
class ELK(Directional):
    """vMF posteriors trained by expected likelihood kernels, without sampling.

    Parameters
    ----------
    form : "proxies" | "pairs"
        Items that an embedding is compared with: class distributions, the default, or the other
        items of the batch.
    class_concentration : float > 0
        Initial concentration of the class distributions, for "proxies". Default: 16.
    inverse_temperature : float > 0
        Inverse temperature t of the pairs, for "pairs". Default: 1.

    Examples
    --------
    >>> from baselines.base import Training
    >>> x, y = torch.randn(12, 4), torch.arange(12) % 3
    >>> method = ELK(nn.Linear(4, 3), training=Training(epochs=2))
    >>> method.fit([(x, y)], progress=False)(x).uncertainty.shape
    torch.Size([12])
    """

    form: str = "proxies"
    class_concentration: float = 16.0
    inverse_temperature: float = 1.0

    positive = ("class_concentration", "inverse_temperature")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name("form", self.form, FORMS)
        self.contrasts = self.form == "pairs"

    def make_loss(self, sizes: Sizes) -> nn.Module:
        """Return the loss among class distributions, or among the pairs of a batch."""
        if self.form == "pairs":
            return ELKPairLoss(inverse_temperature=self.inverse_temperature)
        return ELKProxyLoss(
            sizes.classes, sizes.embedding, class_concentration=self.class_concentration
        )

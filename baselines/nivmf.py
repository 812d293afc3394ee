"""Non-isotropic von Mises-Fisher classes (Kirchhof et al. 2022) for vMF embeddings.

    rho_c(z) = C(|K mu|) e^{(K mu).(K z)/|K z|} |det K| / |K z|^Z,     K = diag(k_c) > 0
    s(p, rho_c) = log mean_s rho_c(z_s),  z_s ~ p = vMF(mu, kappa);    softmax over classes

rho_c is the density of ``K^-1 y / |K^-1 y|`` with ``y ~ vMF(K mu / |K mu|, |K mu|)``. The paper
prints it without ``|K z|^-Z``, which does not integrate to one: ``form="printed"``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from baselines.base import Directional, Sizes
from baselines.base.directional import SampledLoss
from baselines.base.pairs import log_mean_exp
from baselines.distributions import log_vmf_normalizer
from laplace_metric._utils.validation import check_name

FORMS = ("density", "printed")


class NivMFLoss(SampledLoss):
    """``loss(embeddings, labels, concentration)``: cross-entropy of ``s(p_i, rho_c)``, in nats.

    Parameters
    ----------
    n_classes, embedding_size : int
        Sizes C of the classes and Z of the embedding; labels are 0..C-1.
    class_concentration : float > 0
        Initial value of every entry of k_c, so that ``|K mu|`` starts there; they are learnt.
    n_samples : int
        Number of draws of each embedding; 16 in the paper.
    form : "density" | "printed"
        Form of rho_c: the "density", with ``|K z|^-Z``, or what the paper "printed", without.

    Examples
    --------
    >>> z, y = nn.functional.normalize(torch.randn(6, 3), dim=1), torch.arange(6) % 2
    >>> bool(NivMFLoss(2, 3)(z, y, torch.full((6,), 50.0)) > 0)
    True
    """

    def __init__(
        self,
        n_classes: int,
        embedding_size: int,
        *,
        class_concentration: float = 16.0,
        n_samples: int = 16,
        form: str = "density",
    ) -> None:
        super().__init__(n_samples)
        self.form = form
        shape = n_classes, embedding_size
        self.direction = nn.Parameter(torch.randn(shape))
        self.log_scales = nn.Parameter(torch.full(shape, class_concentration).log())

    def log_density(self, z: Tensor) -> Tensor:
        """Return ``log rho_c(z)`` [..., C] of directions z [..., Z] in the form asked for."""
        mu, k = nn.functional.normalize(self.direction, dim=-1), self.log_scales.exp()
        k2 = k.square()
        kappa = torch.linalg.vector_norm(k * mu, dim=-1)  # |K mu|
        stretch = (z.square() @ k2.mT).sqrt()  # |K z|
        cosine = (z @ (k2 * mu).mT) / stretch  # (K mu).(K z) / |K z|
        constant = log_vmf_normalizer(kappa, z.shape[-1]) + self.log_scales.sum(-1)
        if self.form == "printed":
            return constant + cosine
        return constant + cosine - z.shape[-1] * stretch.log()

    def of_draws(self, z: Tensor, labels: Tensor) -> Tensor:
        """Return the cross-entropy of the densities, averaged over draws [S, B, Z]."""
        return nn.functional.cross_entropy(log_mean_exp(self.log_density(z), 0), labels)


@dataclass(eq=False, kw_only=True)
class NivMF(Directional):
    """vMF embeddings among non-isotropic classes.

    Parameters
    ----------
    class_concentration : float > 0
        Initial value of every entry of k_c; they are learnt. Default: 16.
    n_samples : int
        Number of draws in training. Default: 16.
    form : "density" | "printed"
        Form of the classes: their "density", the default, or what the paper "printed", which is not
        normalised.

    Examples
    --------
    >>> from baselines.base import Training
    >>> x, y = torch.randn(12, 4), torch.arange(12) % 3
    >>> method = NivMF(nn.Linear(4, 3), training=Training(epochs=2))
    >>> method.fit([(x, y)], progress=False)(x).uncertainty.shape
    torch.Size([12])
    """

    class_concentration: float = 16.0
    n_samples: int = 16
    form: str = "density"

    positive = ("class_concentration",)
    counts = ("n_samples",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name("form", self.form, FORMS)

    def make_loss(self, sizes: Sizes) -> nn.Module:
        """Return the cross-entropy among non-isotropic classes."""
        return NivMFLoss(
            sizes.classes,
            sizes.embedding,
            class_concentration=self.class_concentration,
            n_samples=self.n_samples,
            form=self.form,
        )

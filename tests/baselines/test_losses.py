"""The other losses against slow direct computations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from pytorch_metric_learning.losses import NTXentLoss
from scipy import integrate, stats
from torch import nn

from baselines.base.pairs import matching_loss, pair_log_probabilities
from baselines.base.view_losses import BYOLLoss, SimSiamLoss, SwAVLoss, sinkhorn
from baselines.explicit_concentration import ExplicitConcentrationLoss
from baselines.hib import HedgedInstanceLoss, kl_to_standard_normal
from baselines.infonce import InfoNCELoss
from baselines.pfe import MutualLikelihoodLoss
from laplace_metric.errors import LabelError


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


LABELS = torch.tensor([0, 1, 0, 2, 1, 0])


def pairs():
    return [(i, j) for i in range(6) for j in range(6) if i != j and LABELS[i] == LABELS[j]]


def test_pair_log_probabilities_against_loops_and_ntxent():
    z = nn.functional.normalize(draw(6, 3), dim=-1)
    s = 5 * z @ z.T
    expected = []
    for i, j in pairs():
        others = sum(math.exp(s[i, k]) for k in range(6) if LABELS[k] != LABELS[i])
        expected.append(s[i, j] - math.log(math.exp(s[i, j]) + others))
    actual = pair_log_probabilities(s, LABELS)
    torch.testing.assert_close(actual, torch.stack(expected))
    torch.testing.assert_close(-actual.mean(), NTXentLoss(temperature=0.2)(z, LABELS))
    loss = InfoNCELoss(inverse_temperature=5.0)
    torch.testing.assert_close(loss(3 * z, LABELS), NTXentLoss(temperature=0.2)(z, LABELS))
    huge = pair_log_probabilities(1e6 * s, LABELS)
    assert bool(huge.isfinite().all())


def test_mutual_likelihood_is_the_integral_of_two_densities():
    mu, v = draw(6, 2), draw(6, 2, seed=1).exp()
    total = 0.0
    for i, j in pairs():
        for k in range(2):
            p, q = (stats.norm(float(mu[a, k]), float(v[a, k]) ** 0.5) for a in (i, j))
            shared = integrate.quad(lambda z, p=p, q=q: p.pdf(z) * q.pdf(z), -40, 40, limit=400)[0]
            total += -math.log(shared) - math.log(2 * math.pi) / 2
    actual = MutualLikelihoodLoss()(mu, LABELS, v)
    assert float(actual) == pytest.approx(total / len(pairs()), rel=1e-8)
    assert torch.autograd.gradcheck(
        lambda m, w: MutualLikelihoodLoss()(m, LABELS, w), (mu.requires_grad_(), v.requires_grad_())
    )


def test_hib_is_the_expected_match_by_quadrature():
    """In one dimension z_i - z_j is N(mu_i - mu_j, v_i + v_j)."""
    mu, v = draw(6, 1), draw(6, 1, seed=1).exp()
    loss = HedgedInstanceLoss(kl_weight=0.3, n_samples=400, scale=2.0, shift=1.0).double()
    same, different = [], []
    x, w = np.polynomial.hermite_e.hermegauss(201)
    for i in range(6):
        for j in range(i + 1, 6):
            gap = float(mu[i] - mu[j]) + float(v[i] + v[j]) ** 0.5 * x
            p = (w / w.sum()) @ (1 / (1 + np.exp(2 * np.abs(gap) - 1)))
            (same if LABELS[i] == LABELS[j] else different).append((p, 1 - p))
    kl = float(kl_to_standard_normal(mu, v).mean())
    expected = -np.mean(np.log([a for a, _ in same])) - np.mean(np.log([b for _, b in different]))
    actual = loss(mu, LABELS, v, seed=torch.Generator().manual_seed(0))
    assert float(actual.detach()) == pytest.approx(expected + 0.3 * kl, rel=0.05)


def test_kl_is_that_of_torch():
    mu, v = draw(6, 3), draw(6, 3, seed=1).exp()
    p = torch.distributions.Normal(mu, v.sqrt())
    q = torch.distributions.Normal(torch.zeros_like(mu), torch.ones_like(mu))
    expected = torch.distributions.kl_divergence(p, q).sum(-1)
    torch.testing.assert_close(kl_to_standard_normal(mu, v), expected)


def test_matching_loss_against_loops_and_far_out():
    logits = 3 * draw(4, 6, 6)
    logits = (logits + logits.mT) / 2
    p = torch.sigmoid(logits).mean(0)
    same = [p[i, j].log() for i in range(6) for j in range(i) if LABELS[i] == LABELS[j]]
    other = [(1 - p[i, j]).log() for i in range(6) for j in range(i) if LABELS[i] != LABELS[j]]
    expected = -torch.stack(same).mean() - torch.stack(other).mean()
    torch.testing.assert_close(matching_loss(logits, LABELS), expected)
    assert torch.autograd.gradcheck(lambda x: matching_loss(x, LABELS), logits.requires_grad_())
    assert bool(matching_loss(1e4 * logits, LABELS).isfinite())
    for labels in (torch.zeros(6), torch.arange(6)):
        with pytest.raises(LabelError, match="pairs"):
            matching_loss(logits, labels)


def test_explicit_concentration_against_loops():
    z, k = draw(6, 3), draw(6, seed=1).exp()
    mu = nn.functional.normalize(z, dim=-1)
    expected = float(NTXentLoss(temperature=0.5)(z, LABELS))
    for i, j in pairs():
        cosine = float(mu[i] @ mu[j])
        one = -0.1 * (k[i] + k[j]) * cosine + 0.02 * (k[i] ** 2 + k[j] ** 2)
        expected += float(one) / len(pairs())
    loss = ExplicitConcentrationLoss(NTXentLoss(temperature=0.5), align=0.1, regularize=0.02)
    assert float(loss(z, LABELS, k)) == pytest.approx(expected, rel=1e-12)
    assert torch.autograd.gradcheck(
        lambda a, b: loss(a, LABELS, b), (z.requires_grad_(), k.requires_grad_())
    )


def test_simsiam_and_byol_against_loops():
    z, target = draw(6, 3), draw(6, 3, seed=1).requires_grad_()
    for other, loss in ((z, SimSiamLoss(3).double()), (target, BYOLLoss(3).double())):
        q = loss.predict(z)
        cosines = [nn.functional.cosine_similarity(q[i], other[j], dim=0) for i, j in pairs()]
        actual = loss(z, LABELS) if other is z else loss(z, LABELS, target=target)
        torch.testing.assert_close(actual, -torch.stack(cosines).mean())
    assert torch.autograd.grad(actual, target, allow_unused=True) == (None,)


def test_swav_codes_are_an_optimal_transport_plan():
    codes = sinkhorn(draw(8, 4), iterations=200)
    torch.testing.assert_close(codes.sum(1), torch.ones(8, dtype=torch.float64))
    torch.testing.assert_close(codes.sum(0), torch.full((4,), 2.0, dtype=torch.float64))
    ratio = codes.log() - draw(8, 4)  # u_i + v_j: every 2x2 minor vanishes
    minors = ratio[:1, :1] + ratio[1:, 1:] - ratio[:1, 1:] - ratio[1:, :1]
    torch.testing.assert_close(minors, torch.zeros_like(minors))


def test_swav_against_loops():
    z, loss = draw(6, 3), SwAVLoss(3, n_prototypes=4).double()
    c = nn.functional.normalize(loss.prototypes, dim=-1)
    scores = nn.functional.normalize(z, dim=-1) @ c.T
    codes, log_p = sinkhorn(scores.detach() / 0.05), (scores / 0.1).log_softmax(-1)
    expected = torch.stack([-(codes[j] * log_p[i]).sum() for i, j in pairs()]).mean()
    torch.testing.assert_close(loss(z, LABELS), expected)

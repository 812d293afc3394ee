"""The von Mises-Fisher losses against quadrature on the circle: value and gradients.

The periodic trapezoid rule is spectrally accurate: with concentrations of about 10, 96 nodes are
exact to 1e-12.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from baselines.base.heads import ConcentrationHead, NormConcentration
from baselines.contrastive_hib import ContrastiveHIBLoss
from baselines.elk import ELKPairLoss, ELKProxyLoss
from baselines.mcinfonce import MCInfoNCELoss, contrast
from baselines.nivmf import NivMFLoss
from baselines.scott_vmf import VMFLoss

NODES = 96


def nodes() -> tuple[Tensor, Tensor]:
    """Angles [n] and their points [n, 2]."""
    angle = torch.arange(NODES, dtype=torch.float64) * (2 * math.pi / NODES)
    return angle, points(angle)


def points(angle: Tensor) -> Tensor:
    return torch.stack([angle.cos(), angle.sin()], dim=-1)


def weights(angle: Tensor, kappa: Tensor) -> Tensor:
    """Quadrature weights [B, n] of vMF(angle_b, kappa_b); each row sums to one."""
    logits = kappa[:, None] * (nodes()[0] - angle[:, None]).cos()
    return logits.softmax(-1)


def parameters() -> tuple[Tensor, Tensor, Tensor]:
    """Angles and concentrations of three embeddings, of which the first two share a class."""
    angle = torch.tensor([0.3, 1.1, 2.4], dtype=torch.float64, requires_grad=True)
    kappa = torch.tensor([3.0, 6.0, 9.0], dtype=torch.float64, requires_grad=True)
    return angle, kappa, torch.tensor([0, 0, 1])


DRAWS = 60_000


T = 4.0


def expect_pairs(function, w):
    """E function(z0, z1, z2) by quadrature; function of cosines (01, 02, 12) -> [n, n, n]."""
    x = nodes()[1]
    cosine = x @ x.T
    values = function(cosine[:, :, None], cosine[:, None, :], cosine[None, :, :])
    return torch.einsum("a,b,c,abc->", w[0], w[1], w[2], values)


def mcinfonce(angle, kappa):
    """Anchor 0 and anchor 1, each with the other as its positive and 2 as its negative."""
    w = weights(angle, kappa)
    first = expect_pairs(lambda p, n, _: torch.sigmoid(T * (p - n)), w)
    second = expect_pairs(lambda p, _, n: torch.sigmoid(T * (p - n)), w)
    return -(first.log() + second.log()) / 2


def contrastive_hib(angle, kappa):
    w, x = weights(angle, kappa), nodes()[1]
    match = w @ torch.sigmoid(T * x @ x.T - 1) @ w.T
    return -match[0, 1].log() - ((1 - match[0, 2]).log() + (1 - match[1, 2]).log()) / 2


def class_logits():
    """Two von Mises classes, by their definition."""
    x = nodes()[1]
    w = torch.tensor([[2.0, 1.0], [-1.0, 3.0]], dtype=torch.float64)
    log_c = -(2 * math.pi * torch.special.i0(w.norm(dim=1))).log()
    return w, x @ w.T + log_c


def scott(angle, kappa):
    log_p = class_logits()[1].log_softmax(-1)
    return -(weights(angle, kappa) @ log_p)[range(3), [0, 0, 1]].mean()


def elk_proxies(angle, kappa):
    density = class_logits()[1].exp()
    return -(weights(angle, kappa) @ density).log().log_softmax(-1)[range(3), [0, 0, 1]].mean()


def elk_pairs(angle, kappa):
    w = weights(angle, kappa)
    p = (w @ w.T) ** 2  # inverse temperature 2
    return -((p[0, 1] / (p[0, 1] + p[0, 2])).log() + (p[1, 0] / (p[1, 0] + p[1, 2])).log()) / 2


def nivmf(angle, kappa):
    w = weights(angle, kappa)
    loss = nivmf_loss()
    return (
        -(w @ loss.log_density(nodes()[1]).exp()).log().log_softmax(-1)[range(3), [0, 0, 1]].mean()
    )


def vmf_loss():
    loss = VMFLoss(2, 2, n_samples=DRAWS).double()
    loss.weight.data = class_logits()[0]
    return loss


def proxy_loss():
    loss, w = ELKProxyLoss(2, 2).double(), class_logits()[0]
    loss.direction.data, loss.log_concentration.data = w, w.norm(dim=1).log()
    return loss


def nivmf_loss():
    loss = NivMFLoss(2, 2, n_samples=DRAWS).double()
    loss.direction.data = torch.tensor([[2.0, 1.0], [-1.0, 3.0]], dtype=torch.float64)
    loss.log_scales.data = torch.tensor([[0.5, 1.0], [1.2, 0.1]], dtype=torch.float64)
    return loss


def test_the_printed_density_of_nivmf_lacks_a_factor_that_makes_it_one():
    """Densities integrate to one on the circle; what is printed times |K z|^-Z is the density."""
    loss, z = nivmf_loss(), nodes()[1]
    step = 2 * math.pi / len(z)
    torch.testing.assert_close(loss.log_density(z).exp().sum(0) * step, torch.ones(2).double())
    printed = nivmf_loss()
    printed.form = "printed"
    stretch = (z[:, None] * printed.log_scales.exp()).norm(dim=-1)
    expected = loss.log_density(z) + 2 * stretch.log()
    torch.testing.assert_close(printed.log_density(z), expected)
    assert (printed.log_density(z).exp().sum(0) * step - 1).abs().min() > 0.05


def settings(**more):
    return {"n_samples": DRAWS, **more}


SAMPLED = {
    "mcinfonce": (lambda: MCInfoNCELoss(**settings(inverse_temperature=T)), mcinfonce),
    "contrastive hib": (
        lambda: ContrastiveHIBLoss(**settings(scale=T, shift=-1.0)),
        contrastive_hib,
    ),
    "scott": (vmf_loss, scott),
    "nivmf": (nivmf_loss, nivmf),
}


CLOSED = {
    "elk pairs": (lambda: ELKPairLoss(inverse_temperature=2.0), elk_pairs),
    "elk proxies": (proxy_loss, elk_proxies),
}


def values(loss, oracle, **extra):
    """(value, gradient to angles, gradient to concentrations) of both."""
    angle, kappa, labels = parameters()
    actual = loss(points(angle), labels, kappa, **extra)
    expected = oracle(angle, kappa)
    grads = [torch.autograd.grad(value, (angle, kappa)) for value in (actual, expected)]
    return (actual, *grads[0]), (expected, *grads[1])


@pytest.mark.parametrize("name", SAMPLED)
def test_sampled_losses_converge_to_the_expectation(name):
    make, oracle = SAMPLED[name]
    actual, expected = values(make(), oracle, seed=torch.Generator().manual_seed(0))
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0.03, atol=0.004)


@pytest.mark.parametrize("name", CLOSED)
def test_closed_losses_equal_the_integral(name):
    make, oracle = CLOSED[name]
    for a, b in zip(*values(make(), oracle), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_contrast_against_loops():
    g = torch.Generator().manual_seed(0)
    positive = torch.randn(5, 3, generator=g, dtype=torch.float64)
    negative = torch.randn(5, 4, 3, generator=g, dtype=torch.float64)
    for b in range(3):
        total = 0.0
        for s in range(5):
            top = math.exp(positive[s, b])
            total += top / (top / 4 + sum(math.exp(negative[s, m, b]) for m in range(4)) / 4) / 5
        assert float(contrast(positive, negative)[b]) == pytest.approx(-math.log(total), rel=1e-12)
    assert torch.autograd.gradcheck(
        contrast, (positive.requires_grad_(), negative.requires_grad_())
    )


def test_concentrations_do_not_depend_on_the_length_of_features():
    head, h = ConcentrationHead(6, initial=20.0), torch.randn(50, 6)
    torch.testing.assert_close(head(1000 * h), head(h))
    assert abs(float(head(h).detach().mean()) - 20) < 2


def test_concentrations_stay_positive():
    head = ConcentrationHead(3)
    head.offset.data.fill_(-200.0)
    assert float(head(torch.randn(4, 3)).detach().min()) == pytest.approx(1e-3)


def test_norm_concentration_starts_on_its_first_batch():
    head, z = NormConcentration(30.0), torch.randn(200, 4)
    assert float(head(z).detach().mean()) == pytest.approx(30, abs=0.01)
    assert float(head(2 * z).detach().mean()) == pytest.approx(60, abs=0.01)
    loaded = NormConcentration(1.0)
    loaded.load_state_dict(head.state_dict())
    torch.testing.assert_close(loaded(z), head(z))

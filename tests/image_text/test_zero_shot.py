"""Class embeddings against a linear map of stacked Gaussians, and weights against brute force."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Dirichlet, MultivariateNormal

from laplace_metric.distributions import Gaussian
from laplace_metric.embedding import Embedding
from laplace_metric.errors import InputError, LabelError
from laplace_metric.image_text import _prompt_weights, csd, prompt_filter, prompt_weights, zero_shot
from laplace_metric.image_text._zero_shot import class_embeddings
from tests.image_text.conftest import certain, random_embedding

F64 = torch.float64


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(2, 5), st.integers(0, 9_999))
def test_a_class_is_the_weighted_sum_of_its_prompts(c, t, d, seed):
    prompts = random_embedding(c * t, d, seed)
    g = torch.Generator().manual_seed(seed)
    weights = torch.rand(c, t, generator=g, dtype=F64) + 0.1
    weights = weights / weights.sum(1, keepdim=True)
    classes = class_embeddings(prompts, t, weights)
    for k in range(c):
        rows = range(k * t, k * t + t)
        stacked = torch.block_diag(*(prompts.variance[r].diag() for r in rows))
        a = torch.cat([w * torch.eye(d, dtype=F64) for w in weights[k]], 1)  # [D, T D]
        m = a @ prompts.mean[list(rows)].flatten()
        cov = a @ stacked @ a.mT / (m @ m)
        torch.testing.assert_close(classes.mean[k], m / m.norm())
        torch.testing.assert_close(classes.variance[k], cov.diagonal())
    equal = class_embeddings(prompts, t, torch.full((c, t), 1 / t))
    torch.testing.assert_close(class_embeddings(prompts, t).mean, equal.mean)


def test_images_go_to_the_class_of_the_smallest_expected_distance():
    image, prompts = random_embedding(20, 4, 0), random_embedding(15, 4, 1)
    classes = class_embeddings(prompts, 3)
    nearest = []
    for n in range(20):
        one = image.mean[n], image.variance[n].log()
        distance = [float(csd(*one, classes.mean[c], classes.variance[c].log())) for c in range(5)]
        nearest.append(distance.index(min(distance)))
    assert zero_shot(image, prompts, 3).argmax(1).tolist() == nearest
    assert len(set(nearest)) > 1


def test_the_filter_keeps_the_most_certain():
    prompts = random_embedding(12, 3, 4)
    kept = prompt_filter(prompts, 4, 2)
    for c in range(3):
        trace = prompts.variance[4 * c : 4 * c + 4].sum(1)
        assert set(kept[c].nonzero().flatten().tolist()) == set(trace.argsort()[:2].tolist())
    torch.testing.assert_close(kept.sum(1), torch.ones(3, dtype=F64))
    assert prompt_filter(certain(prompts), 4, 1).argmax(1).tolist() == [0, 0, 0]


def shots(seed: int, n: int = 6) -> tuple[Embedding, torch.Tensor, Embedding]:
    return random_embedding(n, 3, seed), torch.arange(n) % 2, random_embedding(8, 3, seed + 50)


@pytest.mark.parametrize("alpha", [1.0, 7.5])
def test_em_ends_at_the_mode_of_the_posterior(alpha, monkeypatch):
    monkeypatch.setattr(_prompt_weights, "MAX_STEPS", 5_000)
    image, labels, prompts = shots(3)
    weights = prompt_weights(
        image, labels, prompts, 4, alpha=alpha, samples=4, epsilon=0.05, seed=1
    )
    x = image.sample(4, torch.Generator().manual_seed(1))
    for c in range(2):
        mu, v = prompts.mean[4 * c : 4 * c + 4], prompts.variance[4 * c : 4 * c + 4] + 0.05
        u = 1 / prompts.variance[4 * c : 4 * c + 4].sum(1)
        a = 1 + (alpha - 1) * 4 * u / u.sum()
        points = x[:, labels == c].flatten(0, 1)
        normals = map(MultivariateNormal, mu, v.diag_embed())
        log_f = torch.stack([normal.log_prob(points) for normal in normals], 1)

        def objective(pi, log_f=log_f, a=a):
            return (pi.log() + log_f).logsumexp(1).sum() + ((a - 1) * pi.log()).sum()

        torch.testing.assert_close(weights[c].sum(), torch.ones((), dtype=F64))
        assert float(objective(weights[c].clamp_min(1e-300))) >= brute_force(objective) - 1e-4


def brute_force(objective) -> float:
    """The best of many weights, by gradient steps from random ones."""
    g = torch.Generator().manual_seed(0)
    z = torch.randn(30, 4, generator=g, dtype=F64, requires_grad=True)
    optimizer = torch.optim.Adam([z], 0.1)
    for _ in range(400):
        loss = -sum(objective(one.softmax(0)) for one in z)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return max(float(objective(one.softmax(0)).detach()) for one in z)


def test_a_class_without_images_has_the_mode_of_its_prior():
    image, _, prompts = shots(7)
    alpha = 3.0
    weights = prompt_weights(image, torch.zeros(6).long(), prompts, 4, alpha=alpha, seed=0)
    u = 1 / prompts.variance[4:].sum(1)
    u = u / u.sum()
    torch.testing.assert_close(weights[1], u)
    # the mode of Dirichlet(a) is (a - 1) / sum (a - 1)
    noise = torch.randn(200, 4, generator=torch.Generator().manual_seed(3), dtype=F64)
    prior = Dirichlet(1 + (alpha - 1) * 4 * u)
    nearby = torch.softmax(u.log() + 0.05 * noise, 1)
    assert bool((prior.log_prob(u) >= prior.log_prob(nearby)).all())
    flat = prompt_weights(image, torch.zeros(6).long(), prompts, 4, alpha=1.0, seed=0)
    torch.testing.assert_close(flat[1], torch.full((4,), 0.25, dtype=F64))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"alpha": 0.5}, InputError, r"alpha=0.5: pass a number >= 1"),
        ({"labels": torch.arange(6) % 3}, LabelError, "0 to 2 of 2 classes"),
        ({"templates": 3}, InputError, "8 rows, which is no multiple of templates=3"),
    ],
)
def test_weights_that_are_refused(changes, error, message):
    image, labels, prompts = shots(0)
    given = {"image": image, "labels": labels, "prompts": prompts, "templates": 4, **changes}
    with pytest.raises(error, match=message):
        prompt_weights(**given)


def test_what_is_refused():
    image, _, prompts = shots(0)
    for weights in (torch.ones(2, 4), torch.tensor([[2.0, -1.0, 0.0, 0.0]] * 2)):
        with pytest.raises(InputError, match="sum to 1"):
            zero_shot(image, prompts, 4, weights)
    with pytest.raises(InputError, match=r"weights.*\(4, 2\)"):
        zero_shot(image, prompts, 4, torch.full((4, 2), 0.5))
    with pytest.raises(InputError, match="keep=5.*are 4"):
        prompt_filter(prompts, 4, 5)
    with pytest.raises(InputError, match="prompts.*a list"):
        zero_shot(image, [1], 1)
    opposite = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    with pytest.raises(InputError, match="class 0 cancel"):
        class_embeddings(Embedding(Gaussian(opposite, torch.full((2, 2), 0.1))), 2)

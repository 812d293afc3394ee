"""The posterior of a class model's weights, and the moderated output, against brute force."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy

from laplace_metric.search.classes import _class_weights as module
from laplace_metric.search.classes._class_weights import (
    choose,
    held_out,
    hessian_diagonal,
    likeliest_weights,
    moderated,
)


def problem(n: int, n_classes: int, width: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, classes, and weights with a last column of biases, in float64."""
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % n_classes
    centres = torch.randn(n_classes, width, generator=g, dtype=torch.float64)
    x = centres[y] + torch.randn(n, width, generator=g, dtype=torch.float64)
    return x, y, torch.randn(n_classes, width + 1, generator=g, dtype=torch.float64)


def full_hessian(x: Tensor, y: Tensor, wb: Tensor) -> Tensor:
    """Second derivatives of the loss in all weights but the biases, by autograd [C D, C D]."""

    def loss(w: Tensor) -> Tensor:
        return cross_entropy(x @ w.reshape(len(wb), -1).mT + wb[:, -1], y, reduction="sum")

    return torch.autograd.functional.hessian(loss, wb[:, :-1].flatten())


@pytest.mark.parametrize("n_classes", [2, 5])
def test_the_curvature_is_the_diagonal_of_the_hessian(n_classes, monkeypatch):
    monkeypatch.setattr(module, "SQUARED_BYTES", 7 * 8 * n_classes)
    x, y, wb = problem(40, n_classes, 3)
    expected = full_hessian(x, y, wb).diagonal().reshape(n_classes, 3)
    torch.testing.assert_close(hessian_diagonal(x, wb), expected)


@pytest.mark.parametrize("variance", [0.0, 0.7, 30.0])
def test_one_sided_variance_of_two_classes_is_the_moderated_output_of_mackay(variance):
    """The likeliest class is the reference: the logit of the other is moderated as in (1992)."""
    logits = torch.tensor([[2.0, -1.0]], dtype=torch.float64)
    found = moderated(logits, torch.tensor([[0.0, variance]]), 1.0).exp()[0, 1]
    expected = 1 / (1 + math.exp(3 / math.sqrt(1 + math.pi * variance / 8)))
    assert float(found) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_it_is_nearer_to_an_average_over_the_whole_posterior_than_the_softmax(seed):
    """Monte Carlo over the Laplace posterior with every covariance of all weights."""
    x, y, start = problem(60, 4, 5, seed)
    wb = likeliest_weights(x, y, torch.zeros_like(start), 1.0)
    precision = full_hessian(x, y, wb) + torch.eye(20, dtype=torch.float64)
    new = 2 * problem(50, 4, 5, seed)[0]
    logits = new @ wb[:, :-1].mT + wb[:, -1]
    variance = new.square() @ (1 / (hessian_diagonal(x, wb) + 1)).mT
    draws = torch.distributions.MultivariateNormal(
        wb[:, :-1].flatten(), precision_matrix=precision
    ).sample((4000,))
    average = (new @ draws.reshape(-1, 4, 5).mT + wb[:, -1]).softmax(2).mean(0)

    def divergence(log_p: Tensor) -> float:
        return float((average * (average.log() - log_p)).sum(1).mean())

    assert divergence(moderated(logits, variance, 1.0)) < 0.5 * divergence(logits.log_softmax(1))


@given(st.data())
def test_the_likeliest_label_stays_and_a_constant_changes_nothing(data):
    g = torch.Generator().manual_seed(data.draw(st.integers(0, 2**20)))
    logits = 10 * torch.randn(6, 4, generator=g, dtype=torch.float64)
    variance = 10.0 ** data.draw(st.integers(-3, 4)) * torch.rand(6, 4, generator=g)
    temperature = data.draw(st.floats(0.1, 10))
    log_q = moderated(logits, variance, temperature)
    assert torch.equal(log_q.argmax(1), logits.argmax(1))
    torch.testing.assert_close(log_q.exp().sum(1), torch.ones(6, dtype=torch.float64))
    torch.testing.assert_close(moderated(logits + 100, variance, temperature), log_q)


def test_a_class_that_is_left_out_stays_out():
    logits = torch.tensor([[1.0, -torch.inf, 0.0]])
    log_q = moderated(logits, torch.ones(1, 3), 2.0)
    assert float(log_q[0, 1]) == -torch.inf
    torch.testing.assert_close(
        log_q[:, [0, 2]], moderated(logits[:, [0, 2]], torch.ones(1, 2), 2.0)
    )


def test_prior_and_temperature_are_the_likeliest_of_the_held_out_rows():
    x, y, start = problem(200, 3, 4)
    held, origin = held_out(200), torch.zeros_like(start)
    found = choose(x, y, held, origin)
    losses = {}
    for precision in module.PRECISIONS:
        wb = likeliest_weights(x[~held], y[~held], origin, precision)
        variance = x[held].square() @ (1 / (hessian_diagonal(x[~held], wb) + precision)).mT
        logits = x[held] @ wb[:, :-1].mT + wb[:, -1]
        for t in torch.logspace(-1, 1, 81).tolist():
            log_q = moderated(logits, variance, t)
            losses[precision, t] = math.log(t) ** 2 / 2 - float(
                log_q.gather(1, y[held, None]).sum()
            )
    best = min(losses, key=losses.get)
    assert found.prior_precision == best[0]
    assert found.temperature == pytest.approx(best[1], rel=0.1)
    assert choose(x, y, held, origin, 7.0).prior_precision == 7


def test_a_few_rows_that_are_all_right_do_not_ask_for_certainty():
    x, y, start = problem(10, 2, 3)
    x += 50 * (2 * y - 1)[:, None]
    held = torch.arange(10) >= 8
    assert 0.2 < choose(x, y, held, torch.zeros_like(start)).temperature <= 1


def test_one_row_in_five_is_held_out():
    held = held_out(23)
    assert held.sum() == 4
    assert torch.equal(held, held_out(23))

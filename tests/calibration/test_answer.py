"""The label that an index answers with: a conditional logit with "none"."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize

from laplace_metric.calibration.labels._label_posterior import (
    PENALTY,
    START,
    Candidates,
    LabelPosterior,
)
from laplace_metric.calibration.labels._votes import LabelVotes


def problem(n: int = 400, seed: int = 0):
    """Scores, votes and matches of n queries with 25 neighbours of six labels."""
    g = np.random.default_rng(seed)
    distance = np.sort(g.random((n, 25)), 1)
    labels = g.integers(0, 6, (n, 25))
    odds = g.normal(size=(n, 25))
    votes = replace(LabelVotes.of(distance, labels), class_odds=odds)
    logit = 3 * votes.share - 2 + g.normal(size=(n, 25))
    truth = np.where(g.random(n) < 0.6, labels[:, 0], 6)
    return logit, votes, labels == truth[:, None]


def log_likelihood(numbers, logit, votes, match):
    """One query after the other."""
    a, g, h, b = numbers
    total = 0.0
    columns = logit, votes.weighted, votes.class_odds, votes.labels, match
    for scores, weights, odds, labels, right in zip(*(x.tolist() for x in columns), strict=True):
        terms, target = {}, None
        for j in range(20):
            if labels[j] not in terms:
                terms[labels[j]] = a * scores[j] + g * np.log(weights[j]) + h * odds[j] + b
                target = labels[j] if right[j] else target
        normaliser = np.log(1 + sum(np.exp(t) for t in terms.values()))
        total += (terms[target] if target is not None else 0.0) - normaliser
    return total


def test_the_numbers_are_those_of_the_likelihood():
    logit, votes, match = problem(120)
    fitted = LabelPosterior.fit(Candidates.of(logit, votes), match)

    def loss(x):
        penalty = PENALTY * np.square(x - np.asarray(START)).sum()
        return penalty - log_likelihood(x, logit, votes, match)

    best = minimize(loss, START, method="BFGS")
    assert fitted.numbers.tolist() == pytest.approx(best.x.tolist(), abs=1e-3)


def test_separable_queries_have_finite_numbers_and_none_without_a_neighbour_has_the_start():
    logit, votes, match = problem(60)
    candidates = Candidates.of(logit, votes)
    first = np.zeros_like(match)
    first[:, 0] = True  # the nearest neighbour is always right
    numbers = LabelPosterior.fit(candidates, first).numbers
    for step in np.eye(4):  # no step on either side is better
        values = [
            PENALTY * np.square(numbers + t * step - START).sum()
            - log_likelihood(numbers + t * step, logit, votes, first)
            for t in (-1e-3, 0.0, 1e-3)
        ]
        assert values[1] < min(values[0], values[2])
    nothing = Candidates(*(0 * x for x in (candidates.logit,) * 3), candidates.first & False)
    assert LabelPosterior.fit(nothing, match).numbers.tolist() == START.tolist()


@pytest.mark.parametrize("size", [-2_000.0, 2_000.0])
def test_scores_beyond_the_range_of_exp_have_probabilities(size):
    logit, votes, match = problem(40)
    candidates = Candidates.of(logit + size, votes)
    p = LabelPosterior(np.array([1.0, 0.4, 0.3, 0.0]))(candidates)
    others = LabelPosterior(np.array([1.0, 0.4, 0.3, 0.0]))(Candidates.of(logit + 40, votes))
    expected = others if size > 0 else np.zeros_like(p)  # only differences count, or "none"
    np.testing.assert_allclose(p, expected, rtol=1e-9, atol=1e-12)
    assert np.isfinite(LabelPosterior.fit(candidates, match).numbers).all()


def test_probabilities_are_of_labels_and_none():
    logit, votes, _ = problem(50)
    candidates = Candidates.of(logit, votes)
    p = LabelPosterior(np.array([0.7, 0.4, 0.3, -0.2]))(candidates)
    assert p.shape == (50, 20)
    for row in range(50):
        seen, terms = set(), []
        for j in range(20):
            label = int(votes.labels[row, j])
            if label in seen:
                assert float(p[row, j]) == 0
                continue
            seen.add(label)
            vote = np.log(float(votes.weighted[row, j]))
            odds = 0.3 * votes.class_odds[row, j]
            terms.append((j, np.exp(0.7 * float(logit[row, j]) + 0.4 * vote + odds - 0.2)))
        total = 1 + sum(t for _, t in terms)
        assert [float(p[row, j]) for j, _ in terms] == pytest.approx([t / total for _, t in terms])


def test_it_is_calibrated_on_other_queries():
    logit, votes, match = problem(4000)
    first, second = slice(0, 2000), slice(2000, 4000)
    whole = Candidates.of(logit, votes)
    parts = [Candidates(*(x[part] for x in vars(whole).values())) for part in (first, second)]
    answer, p = LabelPosterior.fit(parts[0], match[first]).answer(parts[1])
    right = np.take_along_axis(match[second], answer[:, None], 1)[:, 0]
    assert p.mean() == pytest.approx(float(right.mean()), abs=0.03)


def test_no_neighbours_are_no_answer():
    votes = LabelVotes.of(np.full((1, 3), np.inf), np.full((1, 3), -1))
    candidates = Candidates.of(np.full((1, 3), -np.inf), votes)
    p = LabelPosterior(START)(candidates)
    assert p.tolist() == [[0.0, 0.0, 0.0]]

"""Sampled retrieval calibration against Python loops, and its two ways of drawing."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from laplace_metric.evaluation import expected_calibration_error, retrieval_calibration


def loop(samples, galleries, gallery_labels, exclude):
    """Prediction and confidence of each query, one draw and one query at a time."""
    prediction, confidence = [], []
    for q in range(samples.shape[1]):
        votes = Counter()
        for s in range(len(samples)):
            far = ((galleries[s] - samples[s, q]) ** 2).sum(1)
            if exclude is not None:
                far[exclude[q]] = np.inf
            votes[int(gallery_labels[far.argmin()])] += 1
        most = max(votes.values())
        prediction.append(min(label for label, n in votes.items() if n == most))
        confidence.append(most / len(samples))
    return prediction, confidence


def draws(s, n, seed):
    return torch.randn(s, n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def check(result, expected, labels):
    prediction, confidence = expected
    assert result.prediction.tolist() == prediction
    assert result.confidence.tolist() == pytest.approx(confidence)
    assert result.correct.tolist() == [p == y for p, y in zip(prediction, labels, strict=True)]
    curve = expected_calibration_error(confidence, result.correct)
    assert (result.ece, result.adaptive_ece) == (curve.ece, curve.adaptive_ece)
    assert result.n_queries == len(labels)


def test_joint_and_query_only_draws_differ():
    """A shift shared by query and gallery cancels in joint draws only."""
    points = torch.tensor([[0.0, 0, 0], [0.1, 0, 0], [9.0, 0, 0], [9.1, 0, 0]]).double()
    samples = points + 100 * draws(20, 1, 6)
    labels = [0, 0, 1, 1]
    joint = retrieval_calibration(samples, labels)
    assert joint.ece == 0.0
    assert joint.bin_count.tolist() == [0] * 9 + [4]
    arguments = {"gallery": points, "gallery_labels": labels, "exclude": torch.arange(4)}
    assert retrieval_calibration(samples, labels, **arguments).ece > 0.1


def test_tied_votes_give_the_smallest_label():
    gallery, others = [[0.0], [1.0], [2.0]], [8, 5, 6]
    samples = [[[0.1]], [[1.1]], [[2.1]], [[1.9]], [[0.9]]]
    arguments = {"gallery": gallery, "gallery_labels": others}
    result = retrieval_calibration(samples, [6], **arguments)
    assert (result.prediction.tolist(), result.confidence.tolist()) == ([5], [0.4])
    result = retrieval_calibration(samples[:1], [8], **arguments)
    assert (result.prediction.tolist(), result.ece) == ([8], 0.0)


@pytest.mark.parametrize("exclude", [None, [3, 3, 1, 0, 2, 5]])
@pytest.mark.parametrize("joint", [True, False])
def test_votes_in_a_gallery(joint, exclude):
    samples, gallery = draws(9, 6, 0), draws(9, 8, 1)
    labels, others = [0, 1, 2, 0, 1, 7], [2, 1, 0, 0, 1, 2, 2, 1]
    items = gallery if joint else gallery[0]
    arguments = {"gallery": items, "gallery_labels": others, "exclude": exclude}
    result = retrieval_calibration(samples, labels, **arguments)
    searched = items.expand(9, 8, 3).numpy().copy()
    check(result, loop(samples.numpy(), searched, np.array(others), exclude), labels)
    assert result.n_unanswerable == 1
    assert not result.correct[5]


@pytest.mark.parametrize("joint", [True, False])
def test_votes_among_the_queries(joint):
    samples, labels = draws(9, 7, 4), [0, 1, 2, 0, 1, 2, 3]
    mean = samples.mean(0)
    against_mean = {"gallery": mean, "gallery_labels": labels, "exclude": torch.arange(7)}
    result = retrieval_calibration(samples, labels, **({} if joint else against_mean))
    searched = (samples if joint else mean.expand(9, 7, 3)).numpy().copy()
    check(result, loop(samples.numpy(), searched, np.array(labels), range(7)), labels)

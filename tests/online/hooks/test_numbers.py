"""What is measured inside others' loops, by brute force."""

from __future__ import annotations

import itertools

import pytest
import torch

from laplace_metric import LaplaceEmbedder
from laplace_metric.online.hooks import Seen, posterior_numbers, seen_by

G = torch.Generator().manual_seed(0)


def seen(n, seed, classes=3):
    g = torch.Generator().manual_seed(seed)
    scores = {name: torch.rand(n, generator=g) for name in ("epistemic", "uncertainty")}
    mean = torch.randn(n, 2, generator=g)
    return Seen(mean, torch.randint(classes, (n,), generator=g), scores)


def by_hand(queries, references, among_them):
    """Nearest neighbours one by one; pairs of a wrong and a right answer, counted."""
    right, kept = [], []
    for i, (z, label) in enumerate(zip(queries.mean, queries.labels, strict=True)):
        others = [j for j in range(len(references.labels)) if not (among_them and j == i)]
        if not any(references.labels[j] == label for j in others):
            continue
        nearest = min(others, key=lambda j: float((references.mean[j] - z).norm()))
        right.append(bool(references.labels[nearest] == label))
        kept.append(i)
    found = {"recall_at_1": sum(right) / len(right)}
    for name, values in queries.scores.items():
        scores = [float(values[i]) for i in kept]
        pairs = [
            (s > t) + 0.5 * (s == t)
            for (s, a), (t, b) in itertools.product(zip(scores, right, strict=True), repeat=2)
            if not a and b
        ]
        found[f"r_auroc_{name}"] = sum(pairs) / len(pairs)
    return found


@pytest.mark.parametrize("how", ["self", "among", "apart"])
def test_answers_by_brute_force(how):
    queries, more = seen(40, 0), seen(25, 1)
    if how == "self":
        found, expected = posterior_numbers(queries), by_hand(queries, queries, True)
    elif how == "among":
        joined = Seen.joined([queries, more])
        found = posterior_numbers(queries, joined, among_them=True)
        expected = by_hand(queries, joined, True)
    else:
        found, expected = posterior_numbers(queries, more), by_hand(queries, more, False)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-9), name
    assert found["mean_epistemic"] == pytest.approx(float(queries.scores["epistemic"].mean()))


def test_other_data_sets_by_brute_force():
    queries, other = seen(30, 0), seen(20, 1)
    found = posterior_numbers(queries, ood={"far": other})
    a, b = queries.scores["epistemic"], other.scores["epistemic"]
    assert found["ood_auroc_far"] == pytest.approx(float((b[:, None] > a).double().mean()))
    for each in (queries, other):
        each.scores.pop("epistemic")
    a, b = queries.scores["uncertainty"], other.scores["uncertainty"]
    found = posterior_numbers(queries, ood={"far": other})
    assert found["ood_auroc_far"] == pytest.approx(float((b[:, None] > a).double().mean()))


def test_what_is_undefined_is_left_out():
    alone = Seen(torch.eye(3), torch.arange(3), {"uncertainty": torch.ones(3)})
    assert posterior_numbers(alone) == {"mean_uncertainty": 1.0}


@pytest.mark.filterwarnings("ignore::laplace_metric.errors.LaplaceMetricWarning")
def test_fits_of_batches_have_no_epistemic_number():
    x, y = torch.randn(20, 4, generator=G), torch.arange(20) % 2
    embedder = LaplaceEmbedder.from_embeddings(x, y, pairs="batch")
    found = seen_by(embedder, [(x[:9], y[:9]), (x[9:], y[9:])])
    assert list(found.scores) == ["uncertainty"]
    assert torch.equal(found.labels, y)

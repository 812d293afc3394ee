"""Shards, fitted apart and merged, are the whole: any split, any order, any structure."""

from __future__ import annotations

import itertools
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laplace_metric import LaplaceEmbedder
from laplace_metric.curvature._statistics import Statistics
from laplace_metric.errors import InputError, LabelError
from laplace_metric.scale import Plan, collect, merge
from tests.scale.data import D, N, batches, covariances, difference, embedder, network, points

STRUCTURES = ["diag", "kron", "full"]
KINDS = [("arccos", "fixed"), ("arccos", "full"), ("arccos", "positives"), ("euclidean", "full")]


def run(plan: Plan, shards: list[torch.Tensor], dtype=torch.float64, backwards=False):
    """Every shard (indices of points) through every task; tasks and statistics are pickled."""
    h, labels = points(dtype)
    while plan.task is not None:
        task = pickle.loads(pickle.dumps(plan.task))
        parts = [collect(task, plan.features(h[i]), labels[i]) for i in shards]
        parts = [pickle.loads(pickle.dumps(part)) for part in parts]
        plan.send(merge(parts[::-1] if backwards else parts))
    return plan.result()


def by_class() -> list[torch.Tensor]:
    _, labels = points()
    return [(labels == label).nonzero().flatten() for label in labels.unique()]


SPLITS = {
    "one": [torch.arange(N)],
    "interleaved": [torch.arange(i, N, 3) for i in range(3)],
    "uneven, one empty": [torch.arange(7), torch.arange(0), torch.arange(7, N)],
    "a class each": by_class(),
}


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize(("distance", "hessian"), KINDS)
def test_merged_shards_are_the_whole(distance, hessian, structure, deep):
    how = {"distance": distance, "hessian": hessian, "structure": structure, "deep": deep}
    how |= {"temperature": 1.0}  # a plan keeps no points
    whole = embedder(**how).fit(batches(), progress=False)
    curvature, expected = whole.hessian_.to_dense(), covariances(whole)
    for name, shards in SPLITS.items():
        plan = Plan(embedder(**how), points()[0][:1])
        merged = run(plan, shards, backwards=name == "a class each")
        assert merged.fitted_.n_points == N
        assert difference(merged.hessian_.to_dense(), curvature) < 1e-12, name
        assert difference(covariances(merged), expected) < 1e-11, name  # the inverse: conditioned


@given(st.lists(st.integers(0, 5), min_size=N, max_size=N), st.permutations(range(6)))
@settings(max_examples=20, deadline=None)
def test_any_split_in_any_order_also_of_float32_inputs(assigned, order):
    """Sums are float64, so a float32 model's posterior is the same to float64 rounding."""
    assigned = torch.tensor(assigned)
    shards = [(assigned == i).nonzero().flatten() for i in order]
    first = points(torch.float32)[0][:1]
    plans = [Plan(embedder(torch.float32), first) for _ in range(2)]
    a = run(plans[0], shards, torch.float32).hessian_
    b = run(plans[1], [torch.arange(N)], torch.float32).hessian_
    assert a.eigenvalues.dtype == torch.float64
    assert difference(a.eigenvalues, b.eigenvalues) < 1e-12


def test_a_finite_margin_with_reference_points():
    h, labels = points()
    kind = {"margin": 0.9, "structure": "diag", "temperature": 1.0}  # a plan keeps no points
    exact = covariances(embedder(**kind).fit(batches(), progress=False))
    plan = Plan(embedder(**kind), h[:1], reference=(h, labels))
    merged = run(plan, SPLITS["interleaved"])
    assert difference(covariances(merged), exact) < 1e-12
    with pytest.raises(InputError, match="reference="):
        Plan(embedder(**kind), h[:1])


def first_task() -> tuple[Plan, Statistics, Statistics]:
    h, labels = points()
    plan = Plan(embedder(structure="diag"), h[:1])
    a, b = (collect(plan.task, h[i::2], labels[i::2]) for i in range(2))
    return plan, a, b


def test_addition_commutes_associates_and_counts():
    h, labels = points()
    plan, a, b = first_task()
    assert (a + b).n_points == N
    for mine, its in zip((a + b).by_class.tensors, (b + a).by_class.tensors, strict=True):
        assert torch.equal(mine, its)
    three = [collect(plan.task, h[i::3], labels[i::3]) for i in range(3)]
    sums = [sum(order[1:], order[0]).by_class.sums for order in itertools.permutations(three)]
    for other in sums[1:]:
        assert difference(other, sums[0]) < 1e-14
    assert a.by_class.sums.dtype == torch.float64
    assert a.sha256 != b.sha256
    assert (a + b).sha256 == (b + a).sha256


def test_a_shard_left_out_or_merged_twice_is_found():
    h, labels = points()
    plan, a, b = first_task()
    plan.send(a + b)
    a, b = (collect(plan.task, h[i::2], labels[i::2]) for i in range(2))
    with pytest.raises(InputError, match=r"120 points.*first one 240 .*class 0 -"):
        plan.send(a)
    with pytest.raises(InputError, match="read 360 points"):
        plan.send(a + b + a)
    plan.send(a + b)
    assert plan.result().fitted_.n_points == N


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_shard_in_the_place_of_another_is_found(dtype):
    """The counts of the classes are right, the points are not."""
    h, labels = points(dtype)
    same = (labels == 0).nonzero().flatten()
    plan = Plan(embedder(dtype, structure="diag"), h[:1])
    plan.send(collect(plan.task, h, labels))
    wrong = h.clone()
    wrong[same[:5]] = h[same[5:10]]  # five points twice, five left out
    statistics = collect(plan.task, wrong, labels)
    with pytest.raises(InputError, match="other points.*first one.*class 0"):
        plan.send(statistics)


def test_tasks_do_not_mix():
    plan, a, b = first_task()
    h, labels = points()
    plan.send(a + b)
    second = collect(plan.task, h, labels)
    with pytest.raises(InputError, match="two tasks"):
        a + second
    with pytest.raises(InputError, match="collect again"):
        plan.send(a)
    other = Plan(embedder(distance="euclidean", structure="diag"), h[:1])
    with pytest.raises(InputError, match="two tasks"):
        a + collect(other.task, h, labels)
    with pytest.raises(InputError, match="not done"):
        plan.result()
    plan.send(second)
    with pytest.raises(InputError, match="is done"):
        plan.send(second)
    with pytest.raises(InputError, match="at least one"):
        merge([])


def test_a_task_knows_what_the_head_computes():
    h, _ = points()
    tasks = []
    for activation in (torch.nn.Tanh(), torch.nn.ReLU(), torch.nn.LeakyReLU(0.3)):
        model = network(deep=True)
        model[1] = activation
        tasks.append(Plan(LaplaceEmbedder(model, head=model), h[:1]).task.task)
    assert len(set(tasks)) == 3
    _, labels = points()
    margins = []
    for shift in (0.0, 0.5):
        reference = h[:40] + shift, labels[:40]
        plan = Plan(embedder(margin=0.9, structure="diag"), h[:1], reference=reference)
        plan.send(collect(plan.task, h, labels))
        margins.append(plan.task.task)
    assert margins[0] != margins[1]


def test_wrong_plans_and_shards():
    h, labels = points()
    with pytest.raises(InputError, match="pairs='all'"):
        Plan(embedder(pairs="batch"), h[:1])
    plan = Plan(embedder(), h[:1])
    with pytest.raises(LabelError, match="dtype"):
        collect(plan.task, h, labels.double())
    with pytest.raises(InputError, match=r"head takes.*\[n, 7\]"):
        collect(plan.task, h[:, :3], labels)
    assert collect(plan.task, torch.zeros(0, D), []).n_points == 0
    with pytest.raises(InputError, match="reference is empty"):
        Plan(embedder(margin=0.9), h[:1], reference=(h[:0], labels[:0]))
    with pytest.raises(LabelError, match="at least.*two classes"):
        plan.send(collect(plan.task, h[:3], torch.zeros(3, dtype=torch.int64)))
    plan = Plan(LaplaceEmbedder(torch.nn.Linear(D, 2, bias=False).double()), h[:1])
    statistics = collect(plan.task, torch.zeros(4, D).double(), torch.tensor([0, 1, 0, 1]))
    with pytest.raises(InputError, match="zero.*no direction"):
        plan.send(statistics)

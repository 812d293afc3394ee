"""Reading points never looks at a value, so that a GPU need not wait for the CPU in the loop.

What makes the host wait on CUDA shows on a CPU as well: reading a number out of a tensor, sizes
that depend on values, comparisons that give a Python bool.
"""

from __future__ import annotations

from itertools import chain, islice

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from laplace_metric.curvature import ContrastiveLoss
from laplace_metric.curvature._all_pairs import curvature_passes
from laplace_metric.curvature._passes import Pass, next_pass
from laplace_metric.familiarity._near_far import NearFar
from laplace_metric.heads._backends import jacobian_of
from laplace_metric.models._feature_store import FeatureStore
from tests.blocks import of_rows
from tests.scale.data import Z, network, points

aten = torch.ops.aten
WAITING = {
    aten._local_scalar_dense.default,
    aten.equal.default,
    aten.is_nonzero.default,
    aten.item.default,
    aten.masked_select.default,
    aten.nonzero.default,
    aten._unique2.default,
    aten.unique_dim.default,
    aten.bincount.default,
}


class NoWaiting(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        assert function not in WAITING, f"{function} waits for the device"
        if function is aten.index.Tensor:
            masks = [i for i in arguments[1] if i is not None and i.dtype == torch.bool]
            assert not masks, "an index by a mask waits for the device"
        return function(*arguments, **(named or {}))


def waits(*_):
    raise AssertionError("this waits for the device")


@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
@pytest.mark.parametrize("hessian", ["fixed", "full"])
@pytest.mark.parametrize("deep", [False, True])
def test_no_pass_waits_in_its_loop(deep, hessian, structure, monkeypatch):
    monkeypatch.setattr("laplace_metric.models._feature_store.blocks", of_rows(40))
    module = network(deep=deep)
    head = jacobian_of(module if deep else module[0], Z)
    loss, source = (
        ContrastiveLoss.of("arccos", hessian, normalized=False),
        FeatureStore.of(*points()),
    )
    blocks = []

    def collect(task: Pass):
        so_far = task.start(source)
        rest = task.blocks(source)
        first = list(islice(rest, 1))  # before it, a pass may look at its classes once
        with NoWaiting(), pytest.MonkeyPatch.context() as patch:
            for name in ("tolist", "numpy", "cpu", "item"):
                patch.setattr(torch.Tensor, name, waits)
            for block in chain(first, rest):
                blocks.append(block)
                task.add(so_far, block)
        return task.finish(so_far)

    schedule = curvature_passes(head, loss, structure)
    task, _ = next_pass(schedule, None)
    while task is not None:
        task, _ = next_pass(schedule, collect(task))
    assert len(blocks) >= 12


def test_near_and_far_do_not_wait_in_their_loop(monkeypatch):
    monkeypatch.setattr("laplace_metric.models._feature_store.blocks", of_rows(40))
    source, watched = FeatureStore.of(*points()), []

    def watch(blocks):
        yield next(blocks)
        for block in blocks:
            watched.append(block)
            with NoWaiting():
                yield block

    assert NearFar.of(watch(source.blocks()), source.classes, len(source)) is not None
    assert len(watched) >= 2

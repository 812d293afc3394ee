"""Many threads, one embedder: the answers are those of one thread, and the model is as it was."""

from __future__ import annotations

import copy
import sys
import threading

import pytest
import torch
from torch import nn

from laplace_metric import Guard
from laplace_metric.models._evaluation_mode import evaluation_mode
from laplace_metric.search import HNSW, IVF, Index
from tests.thread_table import KINDS, hammered, problem


def state_of(model: nn.Module) -> list[tuple[bool, list[int], list[int]]]:
    return [
        (module.training, [*module._forward_hooks], [*module._forward_pre_hooks])
        for module in model.modules()
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_calls_from_eight_threads_are_right_and_leave_the_model_alone(kind):
    embedder, inputs = problem(kind)
    handle = embedder.model.register_forward_hook(lambda *_: None)
    before = state_of(embedder.model)
    outcome = hammered(lambda x: embedder(x).variance, inputs, 8, 60)
    assert (outcome.calls, outcome.errors, outcome.wrong) == (480, 0, 0), outcome.first_error
    assert state_of(embedder.model) == before
    handle.remove()


@pytest.mark.parametrize("structure", ["diag", "kron"])
def test_searches_from_eight_threads_are_right(structure):
    KINDS[structure] = (None, {"structure": structure})
    try:
        embedder, inputs = problem(structure)
    finally:
        del KINDS[structure]
    index = embedder.index(torch.cat(inputs), progress=False)

    def answer(x):
        result = index.search(x, k=5)
        return torch.cat([result.uncertainty[:, None], result.distance_sd], 1)

    outcome = hammered(answer, inputs, 8, 40)
    assert (outcome.calls, outcome.errors, outcome.wrong) == (320, 0, 0), outcome.first_error


def test_two_embedders_of_one_backbone_share_its_modes():
    embedder, inputs = problem("train mode")
    inside, backbone = threading.Event(), embedder.model.body
    expected = embedder(inputs[0]).mean

    def hold():
        with evaluation_mode(backbone):
            inside.set()
            leave.wait(10)

    leave = threading.Event()
    other = threading.Thread(target=hold)
    other.start()
    inside.wait(10)
    assert torch.equal(embedder(inputs[0]).mean, expected)
    assert not backbone.training, "the other call still needs eval mode"
    assert embedder.model.fc.training
    leave.set()
    other.join()
    assert all(module.training for module in embedder.model.modules())


def test_modes_are_put_back_in_any_order_of_leaving():
    model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(3)).train()
    model[1].eval()  # a user's frozen batch norm
    first, second = evaluation_mode(model), evaluation_mode(model)
    with torch.enable_grad():  # out of order, as only threads leave: puts this thread's mode back
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert not model.training
        second.__exit__(None, None, None)
    assert [module.training for module in model.modules()] == [True, True, False]
    with pytest.raises(RuntimeError, match="as is"), evaluation_mode(model):
        raise RuntimeError("as is")
    assert [module.training for module in model.modules()] == [True, True, False]


@pytest.mark.parametrize("engine", ["flat", "ivf", "hnsw"])
def test_a_search_sees_the_index_before_or_after_a_change(engine):
    embedder, inputs = problem("append")
    x, labels = torch.cat(inputs)[:120], torch.arange(120) % 3
    kind = {"flat": "flat", "ivf": IVF(lists=4, probes=4), "hnsw": HNSW(ef=400)}[engine]
    index = embedder.index(x, labels, engine=kind, progress=False)
    done, failures = threading.Event(), []

    def search():
        try:
            while not done.is_set():
                result = index.search(inputs[10], k=80)  # the index never has fewer
                for row, names in zip(result.ids, result.labels, strict=True):
                    assert len(set(row.tolist())) == 80
                    assert (row % 3 == names).all(), "ids and labels of one state"
                assert result.distance.isfinite().all()
        except BaseException as error:
            failures.append(error)

    def change(first):
        try:
            for _ in range(6):
                ids = list(range(first, first + 20))
                index.remove(ids)
                index.add(x[ids], labels[ids], ids=ids)
        except BaseException as error:
            failures.append(error)

    searching = [threading.Thread(target=search) for _ in range(3)]
    changing = [threading.Thread(target=change, args=(first,)) for first in (0, 20)]
    for thread in searching + changing:
        thread.start()
    for thread in changing:
        thread.join()
    done.set()
    for thread in searching:
        thread.join()
    assert not failures
    assert sorted(index.ids.tolist()) == list(range(120))
    assert index.changes == 2 * 2 * 6 * 20
    order = index.ids.argsort()
    assert torch.equal(torch.from_numpy(index.labels[order]), labels)
    assert torch.allclose(index.items.encoded.mean[order], embedder(x).mean, atol=1e-6)


def test_a_search_that_began_before_a_change_ends_as_if_there_were_none(monkeypatch):
    embedder, inputs = problem("append")
    index = embedder.index(torch.cat(inputs), progress=False)
    before = index.search(inputs[0], k=170)
    encode = type(index.encoder).all

    def meanwhile(self, *args, **how):
        encoded = encode(self, *args, **how)
        monkeypatch.undo()
        index.remove(range(100))
        return encoded

    monkeypatch.setattr(type(index.encoder), "all", meanwhile)
    result = index.search(inputs[0], k=170)
    assert len(index) == 76
    assert (result.ids == before.ids).all()


def test_what_changes_while_an_index_is_calibrated_counts_as_a_change(monkeypatch):
    embedder, inputs = problem("append")
    x, labels = torch.cat(inputs), torch.arange(176) % 4
    index = embedder.index(x[:100], labels[:100], progress=False)
    index.remove([0])
    hits = Index.labelled_hits

    def meanwhile(self, *args, **how):
        index.remove([1, 2])
        return hits(self, *args, **how)

    monkeypatch.setattr(Index, "labelled_hits", meanwhile)
    assert index.calibrate(x[100:], labels[100:], k=3).n_items == 99
    assert (index.changes, len(index)) == (2, 97)


def test_an_index_can_still_be_copied():
    embedder, inputs = problem("inside")
    index = embedder.index(inputs[0], progress=False)
    copied = copy.deepcopy(index)
    copied.remove([0])
    assert (len(index), len(copied)) == (16, 15)
    assert index.search(inputs[0], k=1).ids[:, 0].tolist() == list(range(16))
    assert copied.search(inputs[0], k=1).ids[1:, 0].tolist() == list(range(1, 16))


def test_a_head_is_copied_while_hooks_come_and_go():
    """As they do where another thread is in its own call."""
    embedder, inputs = problem("torch.func")
    expected, head = embedder(inputs[0]).variance, embedder.head_.module
    done, interval = threading.Event(), sys.getswitchinterval()

    def come_and_go():
        while not done.is_set():
            handles = [head.register_forward_hook(lambda *_: None) for _ in range(20)]
            for handle in handles:
                handle.remove()

    other = threading.Thread(target=come_and_go)
    sys.setswitchinterval(1e-6)
    try:
        other.start()
        for _ in range(40):
            torch.testing.assert_close(embedder(inputs[0]).variance, expected)
    finally:
        sys.setswitchinterval(interval)
        done.set()
        other.join()
    assert not head._forward_hooks


@pytest.mark.parametrize("method", ["learn_classes", "remove"])
def test_items_that_another_thread_removes_meanwhile_are_no_error(method, monkeypatch):
    """The other thread comes behind each place in which the items are read."""
    g = torch.Generator().manual_seed(0)
    y = torch.arange(300) % 6
    x = nn.functional.one_hot(y, 8) * 3 + torch.randn(300, 8, generator=g)
    made = Guard(x[:240], y[:240], held_out=(x[240:], y[240:]), precision=0.5)
    prior, read = made.index.class_model.prior, Index.items.fget
    for place in range(1, 9):
        guard, reads = copy.deepcopy(made), 0
        index = guard.index

        def items(self, index=index, place=place):
            nonlocal reads
            found = read(self)
            if self is index and not index._changing.locked():
                reads += 1
                if reads == place:
                    other = threading.Thread(target=index.remove, args=([3, 5, 8],))
                    other.start()
                    other.join()
            return found

        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(Index, "items", property(items))
            guard.remove([0, 1]) if method == "remove" else index.learn_classes(*prior)
        gone = {0, 1} if method == "remove" else set()
        gone |= {3, 5, 8} if reads >= place else set()
        assert index.ids.tolist() == [row for row in range(240) if row not in gone]
        assert reads >= 1

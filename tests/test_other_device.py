"""Calibrations and evaluations of a model on a GPU: no operation has tensors of two devices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from laplace_metric import Guard, LaplaceEmbedder
from laplace_metric.search import Index
from laplace_metric.search._near_copies import near_copies
from tests.other_device import Away, moved, other_device

pytestmark = pytest.mark.filterwarnings("ignore::laplace_metric.errors.LaplaceMetricWarning")


def drawn(n):
    g = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 4
    return 2 * nn.functional.one_hot(y, 8) + torch.randn(n, 8, generator=g), y


@pytest.fixture(params=["stand-in", "cuda"])
def there(request):
    """Where a model is moved, in a context in which it computes there."""
    if request.param == "stand-in":
        with other_device():
            yield Away, moved
    elif torch.cuda.is_available():
        yield torch.Tensor.cuda, nn.Module.cuda
    else:
        pytest.skip("needs CUDA")


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 6)).eval()


def test_the_stand_in_refuses_what_a_gpu_refuses():
    with other_device():
        a, b = Away(torch.arange(3.0)), torch.arange(3.0)
        assert (a * b[1])[b.long()].tolist() == [0, 1, 2]
        assert torch.tensor([1.0], device=a.device).device == a.device == a.new_tensor(2).device
        assert a[[2, 0]].cpu().tolist() == [2, 0]
        for refused in (
            lambda: a + b,
            lambda: torch.where(b > 0, b, a),
            lambda: b[a.long()],
            lambda: b.masked_fill(a > 0, 0),
            lambda: torch.cat([a, b]),
        ):
            with pytest.raises(RuntimeError, match="same device"):
                refused()
        with pytest.raises(TypeError, match="numpy"):
            a.numpy()


@pytest.mark.parametrize("classes", ["of both", "in main memory", "none"])
@pytest.mark.parametrize("n", [20, 40, 300])
def test_near_copies_are_found(n, classes, there):
    x, y = drawn(n)
    x[1::5] = x[::5][: len(x[1::5])] + 0.01 * x[2::5][: len(x[1::5])]
    y[1::5] = y[::5][: len(y[1::5])]
    asked = torch.arange(n) % 3 == 0
    codes = None if classes == "none" else y
    expected = near_copies(x, codes), near_copies(x[asked], y[asked], x[~asked], y[~asked])
    assert n < 300 or all(each.are_many for each in expected)
    put, _ = there
    away = put if classes == "of both" else lambda t: t
    codes = None if codes is None else away(codes)
    assert near_copies(put(x), codes).share == expected[0].share
    found = near_copies(put(x[asked]), away(y[asked]), put(x[~asked]), away(y[~asked]))
    assert found.share == expected[1].share
    assert found.size == expected[1].size


@pytest.mark.parametrize("rank_by", ["auto", "mean", "shared"])
def test_an_index_calibrates_and_evaluates(rank_by, there):
    x, y = drawn(600)
    embedder = LaplaceEmbedder(there[1](network())).fit(x[:200], y[:200])
    index = embedder.index(x[200:400], y[200:400], rank_by=rank_by)
    assert index.items.encoded.mean.device.type != "cpu"
    index.calibrate(x[400:500], y[400:500], open_set_fraction=0.1)
    assert index.evaluate(x[500:], y[500:], ood=x[:50] + 9).queries == 100
    assert len(index.suspicious_labels().probability) == 100


SEARCHES = [{}, {"rank_by": "expected"}, {"engine": "ivf"}, {"engine": "hnsw", "rank_by": "mean"}]
EVERY = [(distance, how) for distance in ("arccos", "euclidean") for how in SEARCHES]
SOME = [EVERY[0], EVERY[5], ("arccos", {"engine": "ivf", "rank_by": "predictive"}), EVERY[7]]


@pytest.mark.parametrize(("distance", "how"), SOME)
@pytest.mark.usefixtures("quick")
def test_a_loaded_index_answers_as_before(distance, how, there, tmp_path):
    check_loaded(distance, how, there, tmp_path)


@pytest.mark.parametrize(("distance", "how"), [each for each in EVERY if each not in SOME])
@pytest.mark.usefixtures("quick")
def test_a_loaded_index_of_any_kind_answers_as_before(distance, how, there, tmp_path):
    check_loaded(distance, how, there, tmp_path)


def check_loaded(distance, how, there, tmp_path):
    x, y = drawn(600)
    embedder = LaplaceEmbedder(there[1](network()), distance=distance).fit(x[:200], y[:200])
    built = embedder.index(x[200:400], y[200:400], **how)
    built.calibrate(x[400:500], y[400:500])
    built.save(tmp_path / "index")
    calls = (
        lambda index: index.search(x[500:], 5).match_probability,
        lambda index: index.search(x[500:], 3, among=np.arange(200) % 2 == 0).distance,
        lambda index: index.suspicious_labels().probability,
    )
    before = [call(built).cpu() for call in calls]
    for mmap in (False, True):
        loaded = Index.load(tmp_path / "index", embedder, mmap=mmap)
        assert (loaded.items.encoded.mean.device.type == "cpu") == mmap
        for again in (False, True):
            if again:
                loaded.calibrate(x[400:500], y[400:500])
            for call, expected in zip(calls, before, strict=True):
                torch.testing.assert_close(call(loaded).cpu(), expected, rtol=1e-4, atol=1e-5)
        assert loaded.evaluate(x[500:], y[500:]).queries == 100
        if not mmap:
            loaded.add(x[:20], y[:20], ids=np.arange(5000, 5020))
            loaded.remove([1, 2])
            assert len(loaded.search(x[500:], 3).distance) == 100


def test_items_calibrate_by_cross_fitting(there):
    x, y = drawn(200)
    x, y = torch.cat([x, x[:20]]), torch.cat([y, y[:20]])
    embedder = LaplaceEmbedder(there[1](network())).fit(x, y)
    for how in ({}, {"groups": np.arange(220) // 2}):
        assert embedder.cross_index(x, y, **how).calibration is not None


def test_a_guard_answers(there):
    x, y = drawn(600)
    model = there[1](network())
    guard = Guard(x[:200], y[:200], model=model, held_out=(x[200:400], y[200:400]), precision=0.5)
    guard.add(x[400:410], y[400:410])
    guard.remove([1, 2])
    assert guard.ask(x[410:]).answered.any()

"""Whatever the package gives can be pickled and copied, and does the same afterwards."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest
import torch
from torch import nn

from laplace_metric import Index, LaplaceEmbedder, Monitor, OnlineLaplace
from laplace_metric.search import HNSW, IVF, Flat

COPIES = {"pickle": lambda value: pickle.loads(pickle.dumps(value)), "deepcopy": copy.deepcopy}
ENGINES = [Flat(), Flat(faiss=True), IVF(), HNSW()]

pytestmark = pytest.mark.filterwarnings("ignore::laplace_metric.errors.LaplaceMetricWarning")


@pytest.fixture(params=COPIES)
def copied(request):
    return COPIES[request.param]


@pytest.mark.parametrize("engine", ENGINES, ids=repr)
def test_an_index_with_its_engine(engine, copied, embedder, points, names):
    x, _ = points
    index = embedder.index(x[100:200], names[100:200], engine=engine, progress=False)
    index.calibrate(x[200:300], names[200:300])
    index.search(x[:2])  # what is built at the first search
    again = copied(index)
    same(index.search(x[300:], k=5), again.search(x[300:], k=5))
    again.remove(again.ids[:1])
    assert (len(index), len(again)) == (100, 99)
    again.add(x[:1], names[:1])
    assert again.search(x[:1], k=1).ids.tolist() == [[100]]


def same(a, b):
    assert a.ids.tolist() == b.ids.tolist()
    for name in ("distance", "distance_sd", "match_probability", "epistemic", "ambiguity"):
        torch.testing.assert_close(getattr(a, name), getattr(b, name))


@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
@pytest.mark.parametrize("compact", [False, True])
def test_an_index_of_each_structure(structure, compact, copied, points):
    x, y = points
    embedder = LaplaceEmbedder.from_embeddings(x[:100], y[:100], structure=structure)
    index = embedder.index(x, y, compact=compact, progress=False)
    a, b = index.search(x[:9]), copied(index).search(x[:9])
    torch.testing.assert_close(a.distance_sd, b.distance_sd)


def test_a_copy_of_an_index_on_disk_needs_no_file(tmp_path, copied, embedder, points):
    index = embedder.index(points[0], points[1], engine="ivf", progress=False)
    index.save(tmp_path / "index")
    mapped = Index.load(tmp_path / "index", embedder, mmap=True)
    again = copied(mapped)
    (tmp_path / "index").unlink()
    assert again.search(points[0][:5]).ids.tolist() == index.search(points[0][:5]).ids.tolist()
    again.remove(again.ids[:1])


def values(embedder, index, x, y, names):
    """One of each class that a user holds."""
    result, report = index.search(x[:5]), index.evaluate(x[300:], names[300:], ood=x[:20])
    calibration, embedding = index.calibration, embedder(x[:5])
    monitor = Monitor({"uncertainty": embedder(x).uncertainty}, window=50)
    online = OnlineLaplace(nn.Linear(6, 3))
    return [
        *(embedder, embedder.settings, embedder.fitted_, embedder.posterior_, embedder.hessian_),
        *(embedder.head_, embedding, embedding.distribution, embedder.diagnose(x)),
        *(embedder.distance(x[:3], x[3:6]), embedder.activations(x[:3]), embedder.as_module()),
        *(index, index.encoder, index.items, index.engine, index.kind, result, result.hits),
        *(calibration, calibration.matcher, calibration.labeller, calibration.quality()),
        *(calibration.guarantee(recall=0.5), calibration.held_out_labels()),
        *(index.retrieval_sets(x[:5]), index.label_sets(x[:5], 0.2), report, report.reliability),
        *(report.ood, report.retrieval_sets, *report.guarantees[:1]),
        *report.sparsification.values(),
        *(calibration.assess(index.search(x[:5], k=20).hits), monitor, online),
    ]


def test_everything_a_user_holds(copied, embedder, index, points, names):
    x, y = points
    for value in values(embedder, index, x, y, names):
        again = copied(value)
        assert type(again) is type(value)
        torch.testing.assert_close(tensors(again), tensors(value), equal_nan=True)


def tensors(value):
    """Those among its attributes."""
    found = vars(value) if hasattr(value, "__dict__") else {}
    return {k: v for k, v in found.items() if isinstance(v, torch.Tensor)}


def test_every_error_travels_between_processes():
    from laplace_metric import errors

    for name, kind in vars(errors).items():
        if not (inspect.isclass(kind) and issubclass(kind, Exception)):
            continue
        arguments = {"UnknownNameError": ("k", "x", ("a",)), "MissingPackageError": ("a", "b", "c")}
        error = kind(*arguments.get(name, ("a message",)))
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again)) == (kind, str(error))

"""What the fit, its loaders, miners and settings, and batches of embeddings refuse by name."""

from __future__ import annotations

import warnings
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from baselines import LossPrediction
from benchmarks.datasets import load
from laplace_metric import Embedding, LaplaceEmbedder, OnlineLaplace, scale
from laplace_metric import io as files
from laplace_metric.datasets import ImageSet
from laplace_metric.datasets._image_set import split_classes
from laplace_metric.errors import (
    DtypeError,
    HeadError,
    InputError,
    LabelError,
    NonFiniteError,
    RowError,
    UndefinedMetricWarning,
    UnknownNameError,
    WriteError,
)
from laplace_metric.models import Call, Pooled
from laplace_metric.models._calling import check_labels, device_of, labelled_batches, unwrapped
from laplace_metric.training import train_embedder
from tests.rooms import room

dist = room("laplace_metric.distributions", "baselines.distributions")

D, Z = 4, 3
X = torch.randn(12, D, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 3
LOADER = [(X, Y)]
CPU = torch.device("cpu")
IMAGES = torch.zeros(4, 1, 2, 2, dtype=torch.uint8)
GAUSSIAN = dist.Gaussian(X, X.square())
BATCH = Embedding(GAUSSIAN)


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(D, 8), nn.Tanh(), nn.Linear(8, Z))


class Changed(nn.Module):
    """Its output is another kind of tensor."""

    def __init__(self, change):
        super().__init__()
        self.head, self.change = nn.Linear(D, Z), change

    def forward(self, x):
        return self.change(self.head(x))


class NoArguments(nn.Module):
    def forward(self):
        return X


class NoIterator:
    def __iter__(self):
        return None


def fit(model=None, loader=LOADER, **settings):
    return LaplaceEmbedder(model or network(), **settings).fit(loader, progress=False)


def mined(*indices):
    return fit(pairs=lambda z, y: indices)


def one(*numbers):
    return torch.tensor(numbers)


def tuned(metric=None, **options):
    how = {"loader": LOADER, "metric": metric, "method": "validation", "bounds": (0.1, 10.0)}
    return fit().optimize_prior_precision(**{**how, **options}, progress=False)


def images(**changed):
    good = {"images": IMAGES, "labels": one(0, 1, 0, 1), "name": "x", "class_names": ("a", "b")}
    return ImageSet(**{**good, **changed})


def digits(train_classes):
    return split_classes(images(), train_classes)


def dense(change=lambda x: x):
    return dist.DenseCovariance(change(torch.eye(D).expand(12, D, D)))


REFUSED = {
    "inputs meta": lambda: fit()(X.to("meta")),
    "inputs mkldnn": lambda: fit()(X.to_mkldnn()),
    "model meta": lambda: fit(network().to("meta")),
    "device of no module": lambda: device_of(lambda x: x),
    "output meta": lambda: fit(Changed(lambda z: z.to("meta"))),
    "output sparse": lambda: fit(Changed(lambda z: z.to_sparse())),
    "output whole": lambda: fit(Changed(lambda z: z.long())),
    "output complex": lambda: fit(Changed(lambda z: z.to(torch.complex64))),
    "no rows first": lambda: fit(loader=[(X[:0], Y[:0]), *LOADER]),
    "no rows, labels": lambda: fit(loader=[(X[:0], Y), *LOADER]),
    "loader without iterator": lambda: fit(loader=NoIterator()),
    "inputs without iterator": lambda: fit().uncertainties(NoIterator(), progress=False),
    "pairs none": lambda: fit(pairs=lambda z, y: None),
    "pairs int": lambda: fit(pairs=lambda z, y: 3),
    "pairs text": lambda: fit(pairs=lambda z, y: "abcd"),
    "pairs no arguments": lambda: fit(pairs=lambda: None),
    "pairs lists": lambda: mined([0], [1], [0], [2]),
    "pairs numpy": lambda: mined(*(np.array([i]) for i in range(4))),
    "pairs floats": lambda: mined(*[torch.tensor([0.5])] * 4),
    "pairs scalars": lambda: mined(*[torch.tensor(0)] * 4),
    "pairs uneven": lambda: mined(one(0), one(1), one(0), one(1, 2)),
    "pairs beyond": lambda: mined(one(0), one(1), one(0), one(12)),
    "pairs negative": lambda: mined(one(0), one(1), one(0), one(-1)),
    "metric none": lambda: tuned(lambda e, y: None),
    "metric vector": lambda: tuned(lambda e, y: torch.ones(3)),
    "metric text": lambda: tuned("recall"),
    "metric no arguments": lambda: tuned(lambda: 1.0),
    "bounds number": lambda: tuned(lambda e, y: 1.0, bounds=Fraction(1, 2)),
    "bounds scalar": lambda: tuned(lambda e, y: 1.0, bounds=np.array(1.0)),
    "loss no arguments": lambda: train_embedder(network(), LOADER, lambda: 1, epochs=1),
    "loss without pairs": lambda: train_embedder(
        network(), LOADER, lambda z, y: z.sum(), epochs=1, miner=lambda z, y: ()
    ),
    "miner no arguments": lambda: train_embedder(
        network(), LOADER, lambda z, y, m: z.sum(), epochs=1, miner=lambda: ()
    ),
    "online loss": lambda: OnlineLaplace(network()).fit(LOADER, lambda: 1, epochs=1),
    "parts text": lambda: Embedding.concatenate("x"),
    "parts number": lambda: Embedding.concatenate(0.5),
    "parts numbers": lambda: Embedding.concatenate([1, 2]),
    "parts of two sizes": lambda: Embedding.concatenate(
        [BATCH, Embedding(dist.Gaussian(X[:, :2], X[:, :2].square()))]
    ),
    "parts of two kinds": lambda: Embedding.concatenate(
        [BATCH, Embedding(dist.ProjectedNormal(X, X.square()))]
    ),
    "parts with and without score": lambda: Embedding.concatenate(
        [BATCH, Embedding(GAUSSIAN, torch.ones(12))]
    ),
    "parts of two covariances": lambda: Embedding.concatenate(
        [BATCH, Embedding(dist.Gaussian(X, dense()))]
    ),
    "parts of two posteriors": lambda: dist.RotatedCovariance.concatenate(
        [dist.RotatedCovariance(basis, X.square()) for basis in (torch.eye(D), -torch.eye(D))]
    ),
    "rows text": lambda: BATCH["abc"],
    "rows words": lambda: BATCH[["a", 1]],
    "rows real": lambda: BATCH[0.5],
    "rows sparse": lambda: BATCH[one(0, 1).to_sparse()],
    "rows mask": lambda: BATCH[torch.ones(3, dtype=torch.bool)],
    "rows slice": lambda: BATCH["a":],
    "noise shape": lambda: dense().color(torch.ones(12, D)),
    "noise scalar batch": lambda: dist.DenseCovariance(torch.eye(D)).color(torch.ones(D)),
    "concentration scalar": lambda: dist.NonIsotropicVonMisesFisher(torch.eye(3), 0.5),
    "images numpy": lambda: images(images=IMAGES.numpy()),
    "images mkldnn": lambda: images(images=IMAGES.float().to_mkldnn()),
    "image labels list": lambda: images(labels=[0, 1, 0, 1]),
    "image labels nested": lambda: images(labels=torch.nested.nested_tensor([one(0)] * 4)),
    "class names": lambda: images(class_names=5),
    "classes real": lambda: digits(2.5),
    "classes huge": lambda: digits(2**63),
    "classes word": lambda: digits(["a"]),
    "classes bool": lambda: digits(True),
    "classes object": lambda: digits(object()),
    "pooled whole": lambda: Pooled(nn.Identity())(torch.ones(2, 3, 4, dtype=torch.int8)),
    "method arguments": lambda: Call(NoArguments(), "forward")(X),
    "features nested": lambda: scale.collect(
        scale.Plan(LaplaceEmbedder(network()), X).task, torch.nested.nested_tensor([X[0]]), Y[:1]
    ),
    "limit": lambda: load("digits", limit=Fraction(3, 1)),
    "limits": lambda: load("digits", limit=np.array([1, 2])),
    "size": lambda: load("photographs", size=2.5),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
@pytest.mark.filterwarnings("ignore")
def test_refused_by_name(call):
    with pytest.raises(InputError):
        call()


@pytest.mark.parametrize(
    "labels",
    [
        Y.to("meta"),
        Y.to_sparse(),
        torch.quantize_per_tensor(Y.float(), 1.0, 0, torch.qint8),
    ],
    ids=["meta", "sparse", "quantised"],
)
def test_labels_of_another_kind(labels):
    with pytest.raises(LabelError):
        check_labels(labels)
    with pytest.raises(LabelError):
        next(labelled_batches([(X, labels)], CPU, progress=False, description=""))


def test_labels_of_numpy():
    for labels in (Y.numpy(), Y.numpy().astype(">i4"), Y.numpy().astype(np.uint16), Y.tolist()):
        assert torch.equal(check_labels(labels), Y)


@pytest.mark.parametrize("name", ["hessian", "positivity"])
@pytest.mark.parametrize("value", [{}, []])
def test_a_name_is_text(name, value):
    with pytest.raises(UnknownNameError):
        LaplaceEmbedder(network(), **{name: value})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("value", [10**30, Fraction(1, 2), np.float32(0.5)])
def test_numbers_are_kept_as_floats(value, tmp_path):
    fitted = fit(prior_precision=value, n_effective=value, margin=value)
    kept = fitted.settings
    assert {type(x) for x in (kept.prior_precision, kept.n_effective, kept.margin)} <= {float}
    assert fitted.posterior_.prior_precision == float(value)
    assert fitted(X).uncertainty.isfinite().all()
    fitted.save(tmp_path)
    assert LaplaceEmbedder.load(tmp_path, network()).settings == kept


@pytest.mark.parametrize("change", [lambda z: {"z": z}, lambda z: None], ids=["dict", "none"])
def test_a_head_that_gives_no_tensor(change):
    with pytest.raises(HeadError):
        LaplaceEmbedder(Changed(change), head="").fit(LOADER, progress=False)


def test_rows_of_a_batch():
    mask = (Y == 1).numpy()
    for same in (
        [1, 4, 7, 10],
        one(1, 4, 7, 10).to(torch.int8),
        mask,
        mask.tolist(),
        slice(1, 12, 3),
    ):
        assert torch.equal(BATCH[same].mean, X[Y == 1])
    assert torch.equal(BATCH[-1].mean, X[-1:])
    assert torch.equal(BATCH[np.uint8(2)].mean, X[2:3])
    assert len(list(BATCH)) == 12  # iteration ends by an IndexError
    assert len(BATCH[[]]) == 0
    for beyond in (12, -13, 2**70, [12]):
        with pytest.raises(RowError):
            BATCH[beyond]


def test_types_of_a_dense_covariance():
    with pytest.raises(DtypeError):
        dense().apply(X.double())
    with pytest.raises(DtypeError):
        dense(torch.Tensor.half)
    with pytest.raises(NonFiniteError):
        dense(lambda x: x * torch.nan).color(torch.ones(2, 12, D))
    single = dist.DenseCovariance(4 * torch.eye(D))
    assert torch.equal(single.color(torch.ones(2, D)), torch.full((2, D), 2.0))


def test_inputs_that_are_all_alike_have_no_correlation():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = fit()
    with pytest.warns(UndefinedMetricWarning, match="length_correlation"):
        diagnosis = fitted.diagnose(X[:1])
    assert np.isnan(diagnosis.uncertainties.length_correlation)


@pytest.mark.filterwarnings("ignore")
def test_a_traced_model_has_no_wrapper():
    traced = torch.jit.trace(network(), X)
    assert unwrapped(traced) is traced


def test_a_number_of_classes_of_numpy():
    seen, unseen = split_classes(images(), np.uint8(1))
    assert (seen.labels.tolist(), unseen.labels.tolist()) == ([0, 0], [1, 1])
    assert split_classes(images(), one(1))[0].labels.tolist() == [1, 1]


def test_a_checkpoint_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError):
        LaplaceEmbedder(network()).fit(
            LOADER, progress=False, checkpoint_dir=tmp_path / "file" / "below"
        )


def test_a_journal_that_is_no_list(tmp_path):
    """What a killed writer left behind is removed, whatever its journal holds."""
    for text in ("[" * 100_000, "5", '{"a": 1}'):
        left = tmp_path / f".posterior.{'0' * 16}.tmp"
        left.mkdir()
        (left / files.JOURNAL).write_text(text)
        files.write(tmp_path, {"n": 1}, {})
        assert not left.exists()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("distance", ["arccos", "euclidean"])
@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
def test_no_rows_have_no_uncertainty(structure, distance):
    fitted = fit(structure=structure, distance=distance)
    assert fitted(X[:0]).uncertainty.shape == (0,)
    assert fitted.distance(X[:0], X[:0]).mean.shape == (0,)


def test_a_head_meets_another_model(tmp_path):
    fitted = LaplaceEmbedder(network(), head="append").fit(LOADER, progress=False)
    fitted.save(tmp_path)
    other = LaplaceEmbedder.load(tmp_path, nn.Linear(X.shape[1], 7))
    with pytest.raises(HeadError, match="7.*appended head takes"):
        other(X)


def test_a_covariance_of_no_coordinates():
    with pytest.raises(InputError, match="single number"):
        dist.DiagonalCovariance(torch.tensor(1.0))


@pytest.mark.parametrize(
    "how",
    [
        {"scheduler": torch.optim.lr_scheduler.StepLR},
        {"scheduler": torch.optim.LBFGS([torch.ones(1, requires_grad=True)])},
        {"loss": lambda z, y: z.to("meta").sum()},
    ],
)
def test_a_training_that_cannot_step(how):
    with pytest.raises(InputError, match="scheduler|loss"):
        train_embedder(
            network(), LOADER, **{"loss": lambda z, y: z.sum(), **how}, epochs=1, progress=False
        )


@pytest.mark.filterwarnings("ignore")
def test_weights_that_are_computed_cannot_be_moved_online():
    model = nn.Sequential(
        nn.Linear(X.shape[1], 4), nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
    )
    with pytest.raises(HeadError, match="weight_norm"):
        OnlineLaplace(model).fit(LOADER, lambda z, y: z.sum(), epochs=1, progress=False)


def test_a_predictor_of_the_loss_has_a_width():
    with pytest.raises(InputError, match="hidden=-1"):
        LossPrediction(network(), hidden=-1)

"""A saved posterior: what comes back, and every way its file can be wrong."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from laplace_metric import Guard, Index, LaplaceEmbedder
from laplace_metric import io as files
from laplace_metric.errors import FileFormatError, InputError, NotFittedError
from tests.saved_files import edit, of_version, rewrite


@pytest.fixture
def fitted(model, loader):
    return LaplaceEmbedder(model, hessian="positives", margin=0.9, prior_precision=2.5).fit(
        loader, progress=False
    )


def test_round_trip(fitted, model, data, tmp_path):
    fitted.tune_prior()
    fitted.save(tmp_path / "deep" / "posterior")
    loaded = LaplaceEmbedder.load(tmp_path / "deep" / "posterior", model)
    assert loaded.settings == fitted.settings
    assert loaded.fitted_.n_points == 60
    assert torch.equal(loaded.hessian_.eigenvalues, fitted.hessian_.eigenvalues)
    assert loaded.hessian_.negative_fraction == fitted.hessian_.negative_fraction
    before, after = fitted(data[0]), loaded(data[0])
    assert torch.equal(before.mean, after.mean)
    assert torch.equal(before.variance, after.variance)
    draws = [e.sample(data[0], 3, torch.Generator().manual_seed(0)) for e in (fitted, loaded)]
    assert torch.equal(*draws)


def test_normalised_network_and_standard_error_survive(model, loader, tmp_path):
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = model

        def forward(self, x):
            return nn.functional.normalize(self.body(x), dim=-1)

    net = Net()
    embedder = LaplaceEmbedder(net, distance="euclidean", structure="diag", margin=0.5)
    embedder.fit(loader, progress=False, reference=24, seed=torch.Generator().manual_seed(0))
    embedder.save(tmp_path / "p")
    loaded = LaplaceEmbedder.load(tmp_path / "p", net)
    assert loaded.spherical
    assert torch.equal(loaded.hessian_.standard_error, embedder.hessian_.standard_error)


def test_saving_again_replaces_and_leaves_nothing_behind(fitted, model, loader, tmp_path):
    fitted.save(tmp_path / "p")
    LaplaceEmbedder(model).fit(loader, progress=False).save(tmp_path / "p")
    assert [path.name for path in tmp_path.iterdir()] == ["p"]
    assert LaplaceEmbedder.load(tmp_path / "p", model).settings.hessian == "fixed"


def test_not_fitted(model, tmp_path):
    with pytest.raises(NotFittedError, match="call fit"):
        LaplaceEmbedder(model).save(tmp_path / "p")


def test_a_miner_is_kept_by_name_only(model, loader, data, tmp_path):
    from pytorch_metric_learning.miners import MultiSimilarityMiner

    embedder = LaplaceEmbedder(model, pairs=MultiSimilarityMiner()).fit(loader, progress=False)
    embedder.save(tmp_path / "p")
    loaded = LaplaceEmbedder.load(tmp_path / "p", model)
    assert torch.equal(loaded(data[0]).variance, embedder(data[0]).variance)
    with pytest.raises(InputError, match="MultiSimilarityMiner"):
        loaded.fit(loader, progress=False)


def test_another_head(fitted, model, tmp_path):
    fitted.save(tmp_path / "p")
    cases = [
        (nn.Sequential(nn.Linear(5, 8)), "'2', which model lacks"),
        (nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)), "n_outputs|shapes"),
        (nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4, bias=False)), "shapes"),
        (nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4)), "weights differ"),
        (model.double(), "dtype 'torch.float64'"),
    ]
    for other, message in cases:
        with pytest.raises(FileFormatError, match=message):
            LaplaceEmbedder.load(tmp_path / "p", other)


def test_files_that_are_not_ours(fitted, model, tmp_path):
    path = tmp_path / "p"
    with pytest.raises(FileFormatError, match="p does not.*exist"):
        LaplaceEmbedder.load(path, model)
    path.write_text("{")
    with pytest.raises(FileFormatError, match="p is not.*safetensors.*Version 0.3"):
        LaplaceEmbedder.load(path, model)
    files.write(path, files.Part(files.Kind("thing", "a thing", 1), {}))
    with pytest.raises(FileFormatError, match="p is not.*posterior.*holds thing"):
        LaplaceEmbedder.load(path, model)
    fitted.save(path)
    of_version(path, "posterior", 99)
    with pytest.raises(FileFormatError, match="version 99.*reads 4.*upgrade"):
        LaplaceEmbedder.load(path, model)


def test_a_file_of_another_kind_names_what_reads_it(fitted, model, data, tmp_path):
    fitted.save(tmp_path / "p")
    fitted.index(*data).save(tmp_path / "i")
    with pytest.raises(FileFormatError, match=r"LaplaceEmbedder\.load\(path, model\) reads it"):
        Guard.load(tmp_path / "p")
    with pytest.raises(FileFormatError, match=r"Index\.load\(path, embedder\) reads it"):
        LaplaceEmbedder.load(tmp_path / "i", model)
    guard = Guard(*data, model=fitted, held_out=(data[0] + 0.1, data[1]), precision=0.5)
    guard.save(tmp_path / "g")
    with pytest.raises(FileFormatError, match=r"saved guard.*read it with Guard\.load\(path\)"):
        Index.load(tmp_path / "g", LaplaceEmbedder(model).fit(*data, progress=False))


def test_arguments_in_the_wrong_order_are_named_by_their_kind(model, tmp_path):
    with pytest.raises(InputError, match=f"path is a {type(model).__name__}: .*a path"):
        LaplaceEmbedder.load(model, tmp_path / "p")


def test_a_folder_of_a_former_version_is_named(fitted, model, tmp_path):
    (tmp_path / "posterior.json").write_text("{}")
    with pytest.raises(FileFormatError, match="folder: .*Version 0.3 .*save again"):
        LaplaceEmbedder.load(tmp_path, model)
    with pytest.raises(InputError, match=r"folder: give .*posterior\.safetensors"):
        fitted.save(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"settings": {}}, "it has no 'pairs'"),
        ({"settings": None}, "posterior.settings is None, not an object"),
        ({"settings": {"distance": "x", "pairs": "all"}}, "distance='x'"),
        ({"head": None}, "posterior.head is None, not an object"),
        ({"head": {}}, "'name'"),
        ({"n_effective": -1}, "posterior.n_effective is -1"),
        ({"n_effective": math.nan}, "posterior.n_effective is nan"),
        ({"n_points": 1.5}, "posterior.n_points is 1.5"),
        ({"clipped_fraction": 1.5}, "posterior.clipped_fraction is 1.5"),
        ({"clipped_fraction": None}, "posterior.clipped_fraction is None"),
    ],
)
def test_damaged_content(fitted, model, tmp_path, changes, message):
    fitted.save(tmp_path / "p")
    edit(tmp_path / "p", "posterior", **changes)
    with pytest.raises(FileFormatError, match=message) as caught:
        LaplaceEmbedder.load(tmp_path / "p", model)
    assert str(tmp_path / "p") in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.pop("eigenvalues"), "posterior/eigenvalues is missing"),
        (lambda a: a["eigenvalues"].fill_(-1), "posterior/eigenvalues holds -1"),
        (lambda a: a["eigenvalues"].fill_(math.nan), "posterior/eigenvalues holds nan"),
        (lambda a: a.update(eigenvalues=a["eigenvalues"][1:]), "posterior/eigenvalues has shape"),
        (lambda a: a["left.0"].fill_(math.inf), "posterior/left.0 holds inf"),
        (lambda a: a.pop("right.0"), "posterior/right.0 is missing"),
        (lambda a: a["near_far.points"].fill_(math.nan), "posterior/near_far.points holds nan"),
        (lambda a: a.pop("near_far.points"), "posterior/near_far.points is missing"),
    ],
)
def test_damaged_arrays(fitted, model, tmp_path, change, message):
    fitted.save(tmp_path / "p")
    rewrite(tmp_path / "p", "posterior", lambda _, arrays: change(arrays))
    with pytest.raises(FileFormatError, match=message) as caught:
        LaplaceEmbedder.load(tmp_path / "p", model)
    assert str(tmp_path / "p") in str(caught.value)

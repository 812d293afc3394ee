"""Saving, loading, and every way a folder can be wrong."""

from __future__ import annotations

import json
import os

import pytest
import torch
from torch import nn

from laplace_metric import LaplaceEmbedder
from laplace_metric import io as files
from laplace_metric.errors import FileFormatError, InputError, NotFittedError


@pytest.fixture
def fitted(model, loader):
    return LaplaceEmbedder(model, hessian="positives", margin=0.9, prior_precision=2.5).fit(
        loader, progress=False
    )


def edit(folder, **changes):
    path = folder / files.INDEX
    path.write_text(json.dumps(files.sealed({**json.loads(path.read_text()), **changes})))


def test_round_trip(fitted, model, data, tmp_path):
    fitted.optimize_prior_precision()
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
    embedder.fit(loader, progress=False, reference=24, generator=torch.Generator().manual_seed(0))
    embedder.save(tmp_path)
    loaded = LaplaceEmbedder.load(tmp_path, net)
    assert loaded.spherical
    assert torch.equal(loaded.hessian_.standard_error, embedder.hessian_.standard_error)


def test_saving_again_replaces_and_leaves_nothing_behind(fitted, model, loader, tmp_path):
    fitted.save(tmp_path)
    LaplaceEmbedder(model).fit(loader, progress=False).save(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert LaplaceEmbedder.load(tmp_path, model).settings.hessian == "fixed"


def test_not_fitted(model, tmp_path):
    with pytest.raises(NotFittedError, match="call fit"):
        LaplaceEmbedder(model).save(tmp_path)


def test_a_miner_is_kept_by_name_only(model, loader, data, tmp_path):
    from pytorch_metric_learning.miners import MultiSimilarityMiner

    embedder = LaplaceEmbedder(model, pairs=MultiSimilarityMiner()).fit(loader, progress=False)
    embedder.save(tmp_path)
    loaded = LaplaceEmbedder.load(tmp_path, model)
    assert torch.equal(loaded(data[0]).variance, embedder(data[0]).variance)
    with pytest.raises(InputError, match="MultiSimilarityMiner"):
        loaded.fit(loader, progress=False)


def test_another_head(fitted, model, tmp_path):
    fitted.save(tmp_path)
    cases = [
        (nn.Sequential(nn.Linear(5, 8)), "'2', which model lacks"),
        (nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)), "n_outputs|shapes"),
        (nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4, bias=False)), "shapes"),
        (nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4)), "weights differ"),
        (model.double(), "dtype 'torch.float64'"),
    ]
    for other, message in cases:
        with pytest.raises(FileFormatError, match=message):
            LaplaceEmbedder.load(tmp_path, other)


def test_folders_that_are_not_ours(fitted, model, tmp_path):
    with pytest.raises(FileFormatError, match=r"holds no posterior\.json"):
        LaplaceEmbedder.load(tmp_path / "nowhere", model)
    (tmp_path / files.INDEX).write_text("{")
    with pytest.raises(FileFormatError, match="damaged"):
        LaplaceEmbedder.load(tmp_path, model)
    for foreign in ("[]", '{"format": "other"}'):
        (tmp_path / files.INDEX).write_text(foreign)
        with pytest.raises(FileFormatError, match="not written by laplace_metric"):
            LaplaceEmbedder.load(tmp_path, model)
    fitted.save(tmp_path)
    edit(tmp_path, version=99)
    with pytest.raises(FileFormatError, match="version 99.*upgrade"):
        LaplaceEmbedder.load(tmp_path, model)


@pytest.mark.parametrize(
    "changes",
    [{"settings": {}}, {"head": None}, {"n_effective": -1}, {"settings": {"distance": "x"}}],
)
def test_damaged_content(fitted, model, tmp_path, changes):
    fitted.save(tmp_path)
    edit(tmp_path, **changes)
    with pytest.raises(FileFormatError, match="damaged"):
        LaplaceEmbedder.load(tmp_path, model)


def test_a_path_outside_the_folder_is_not_followed(fitted, model, tmp_path):
    fitted.save(tmp_path / "posterior")
    name = next((tmp_path / "posterior").glob("*.safetensors")).name
    os.replace(tmp_path / "posterior" / name, tmp_path / name)
    edit(tmp_path / "posterior", tensors=f"../{name}")
    with pytest.raises(FileFormatError, match="not a file name"):
        LaplaceEmbedder.load(tmp_path / "posterior", model)

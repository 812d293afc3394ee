"""What is saved is what is loaded, to the bit; and every way a folder can be wrong."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import FileFormatError, InputError, StaleCalibrationWarning
from laplace_metric.search import HNSW, IVF, Flat, Index
from tests.saved_files import edit, flip, of_version, rewrite

KINDS = {"flat": Flat(), "ivf": IVF(lists=7, probes=3), "hnsw": HNSW(links=12, ef=40)}


@pytest.fixture(params=KINDS)
def index(request, points, embedder) -> Index:
    """Of 293 items, some of which came and went."""
    x, y = points
    names = [f"class {label}" for label in y.tolist()]
    made = embedder.index(x[:290], names[:290], engine=KINDS[request.param], progress=False)
    made.remove([3, 289])
    made.add(x[290:295], names[290:295], ids=range(900, 905))
    return made


def same(index: Index, other: Index, queries: torch.Tensor, mapped: bool = False) -> None:
    """Every number and every id of a search; products may round by where a file is mapped."""
    ours, theirs = (i.search(queries, k=9).columns() for i in (index, other))
    assert list(ours) == list(theirs)
    for name, values in ours.items():
        if mapped and values.dtype.kind == "f":
            np.testing.assert_allclose(values, theirs[name], rtol=1e-5, atol=1e-7, err_msg=name)
        else:
            assert np.array_equal(values, theirs[name]), name
    assert other.kind == index.kind
    assert np.array_equal(other.ids, index.ids)


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("calibrated", [False, True])
def test_round_trip(index, calibrated, mmap, points, embedder, tmp_path):
    x, y = points
    if calibrated:
        index.calibrate(x[300:], [f"class {label}" for label in y[300:].tolist()], k=5)
    index.save(tmp_path / "deep" / "index")
    loaded = Index.load(tmp_path / "deep" / "index", embedder, mmap=mmap)
    same(index, loaded, x[300:400], mmap)
    assert (loaded.calibration is None) == (not calibrated)
    if calibrated:
        ours, theirs = (i.retrieval_sets(x[300:330], 0.2) for i in (index, loaded))
        assert torch.equal(ours.members, theirs.members)
        assert loaded.search(x[:1], k=2).match_probability is not None


@pytest.mark.parametrize("rank_by", ["mean", "predictive", "expected", "shared"])
@pytest.mark.parametrize("mmap", [False, True])
def test_the_ranking_is_kept(rank_by, mmap, points, embedder, tmp_path):
    x, _ = points
    made = embedder.index(x[:200], rank_by=rank_by, progress=False)
    made.save(tmp_path / "index")
    loaded = Index.load(tmp_path / "index", embedder, mmap=mmap)
    assert loaded.rank_by == rank_by
    assert loaded.labels is None
    same(made, loaded, x[300:400], mmap)


def test_a_mapped_index_is_read_only_and_stays_on_disk(index, points, embedder, tmp_path):
    x, _ = points
    index.save(tmp_path / "index")
    loaded = Index.load(tmp_path / "index", embedder, mmap=True)
    for change in (lambda: loaded.add(x[:1], ["a"], ids=[7777]), lambda: loaded.remove([900])):
        with pytest.raises(InputError, match="loaded.*mmap=True.*without"):
            change()
    assert len(loaded) == 293
    for tensor in (loaded.items.encoded.mean, loaded.items.encoded.basis_inputs):
        assert pages_of(tmp_path / "index", tensor.data_ptr())


@pytest.mark.skipif(sys.platform != "linux", reason="file names are UTF-8 or UTF-16")
@pytest.mark.parametrize("mmap", [False, True])
def test_a_file_whose_name_is_not_utf_8(index, mmap, points, embedder, tmp_path):
    path = tmp_path / os.fsdecode(b"caf\xe9")
    index.save(path)
    loaded = Index.load(path, embedder, mmap=mmap)
    same(index, loaded, points[0][300:400], mmap)
    if mmap and isinstance(index.kind, IVF):
        assert loaded._state.engine.place.path == path


def pages_of(path: Path, address: int) -> bool:
    """Whether the address lies in a mapping of the file."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("only Linux says what is mapped")
    lines = [line.split()[0] for line in maps.read_text().splitlines() if str(path) in line]
    spans = [[int(end, 16) for end in line.split("-")] for line in lines]
    return any(low <= address < high for low, high in spans)


def test_mapping_does_not_hash_what_loading_does(index, points, embedder, tmp_path):
    index.save(tmp_path / "index")
    flip(tmp_path / "index", "index/mean")
    with pytest.raises(FileFormatError, match="damaged.*arrays.*sha256"):
        Index.load(tmp_path / "index", embedder)
    assert len(Index.load(tmp_path / "index", embedder, mmap=True)) == 293
    with pytest.raises(FileFormatError, match="damaged.*arrays.*sha256"):
        Index.load(tmp_path / "index", embedder, mmap=True, verify=True)


@pytest.mark.parametrize("mmap", [False, True])
def test_a_digit_of_the_json_that_flipped_is_noticed(mmap, index, embedder, tmp_path):
    index.save(tmp_path / "index")
    path = tmp_path / "index"
    data = path.read_bytes()
    name = rb"\"next_id\": "
    at = data.index(name) + len(name)
    path.write_bytes(data[:at] + bytes([(data[at] - 47) % 9 + 49]) + data[at + 1 :])
    with pytest.raises(FileFormatError, match="header.*the sha256"):
        Index.load(path, embedder, mmap=mmap)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_items": 12}, "index/mean has shape .50, 6., not .12, 'any'."),
        ({"rank_by": "luck"}, "rank_by is 'luck'"),
        ({"engine": {"name": "annoy"}}, "damaged.*engine='annoy'"),
        ({"engine": {"name": "ivf", "lists": 0}}, "damaged.*lists=0"),
        ({"engine": {"name": "flat", "speed": 3}}, "damaged.*speed"),
        ({"next_id": None}, "index.next_id is None"),
        ({"changes": -1}, "index.changes is -1"),
        ({"class_model": "no"}, "index.class_model is 'no'"),
        ({"embedder": 3}, "index.embedder is 3"),
        ({"calibration": {"k": 3, "matcher": {"chosen": 3}}}, "matcher.chosen is 3"),
        ({"calibration": {}}, "calibration.matcher is None"),
    ],
)
def test_a_foreign_or_damaged_json_is_refused(changes, message, points, embedder, tmp_path):
    embedder.index(points[0][:50], progress=False).save(tmp_path / "index")
    edit(tmp_path / "index", "index", **changes)
    with pytest.raises(FileFormatError, match=message) as caught:
        Index.load(tmp_path / "index", embedder)
    assert str(tmp_path / "index") in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("mean", math.nan, "index/mean holds nan"),
        ("trace", -1.0, "index/trace holds -1"),
        ("epistemic", math.inf, "index/epistemic holds inf"),
        ("basis_inputs", math.nan, "index/basis_inputs holds nan"),
    ],
)
def test_numbers_that_no_embedding_has_are_named(name, value, message, points, embedder, tmp_path):
    embedder.index(points[0][:50], progress=False).save(tmp_path / "index")
    rewrite(tmp_path / "index", "index", lambda _, arrays: arrays[name].view(-1)[3:4].fill_(value))
    with pytest.raises(FileFormatError, match=message):
        Index.load(tmp_path / "index", embedder)


def test_an_index_of_another_version_and_a_former_folder_are_named(points, embedder, tmp_path):
    embedder.index(points[0][:50], progress=False).save(tmp_path / "index")
    of_version(tmp_path / "index", "index", 99)
    with pytest.raises(FileFormatError, match="index.*version 99.*reads 6"):
        Index.load(tmp_path / "index", embedder)
    with pytest.raises(FileFormatError, match="0.3 saved folders"):
        Index.load(tmp_path, embedder)


def test_another_embedder_is_refused(points, embedder, tmp_path):
    x, y = points
    embedder.index(x[:50], progress=False).save(tmp_path / "index")
    Index.load(tmp_path / "index", embedder)
    fit = partial(LaplaceEmbedder.from_embeddings, distance="arccos")
    others = [
        fit(x[:200], y[:200], prior_precision=21.0),
        fit(x[:200], y[:200], prior_precision=20.0, structure="diag"),
        fit(x[:100], y[:100], prior_precision=20.0),
        fit(2 * x[:200], y[:200], prior_precision=20.0, distance="euclidean", margin=1.0),
    ]
    for other in others:
        with pytest.raises(FileFormatError, match="another embedder"):
            Index.load(tmp_path / "index", other)
    again = fit(x[:200], y[:200], prior_precision=20.0)
    assert len(Index.load(tmp_path / "index", again)) == 50


def test_an_index_belongs_to_the_prior_that_its_vectors_are_compared_under(points, tmp_path):
    x, y = points[0][:200], points[1][:200]
    embedder = LaplaceEmbedder.from_embeddings(x, y)
    given = embedder.posterior_.prior_precision
    same = LaplaceEmbedder.from_embeddings(x, y, prior_precision=given)
    assert torch.equal(same.posterior_.spectrum, embedder.posterior_.spectrum)
    embedder.index(x[:50], progress=False).save(tmp_path / "index")
    with pytest.raises(FileFormatError, match="another prior precision"):
        Index.load(tmp_path / "index", same)


def test_an_index_belongs_to_the_posterior_that_it_was_built_with(points, tmp_path):
    x, y = points
    embedder = LaplaceEmbedder.from_embeddings(x[:200], y[:200])
    index = embedder.index(x[:50], progress=False)
    before = index.search(x[:5], k=3)
    embedder.tune_prior()
    assert torch.equal(index.search(x[:5], k=3).distance_sd, before.distance_sd)
    index.save(tmp_path / "index")
    with pytest.raises(FileFormatError, match="another prior precision"):
        Index.load(tmp_path / "index", embedder)


def test_a_crash_while_saving_keeps_the_old_index(points, embedder, tmp_path, monkeypatch):
    x, _ = points
    old = embedder.index(x[:100], engine=IVF(lists=2), progress=False)
    old.save(tmp_path / "index")
    new = embedder.index(x[:120], engine=IVF(lists=2), progress=False)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", Mock(side_effect=OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            new.save(tmp_path / "index")
    same(old, Index.load(tmp_path / "index", embedder), x[200:300])
    assert [path.name for path in tmp_path.iterdir()] == ["index"], "no temporary file is left"
    new.save(tmp_path / "index")
    same(new, Index.load(tmp_path / "index", embedder), x[200:300])


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_a_mapped_index_is_saved_whole(kind, points, embedder, tmp_path):
    """Over itself, and elsewhere, when the first file is gone."""
    x, y = points
    made = embedder.index(x[:290], y[:290], engine=KINDS[kind], progress=False)
    made.save(tmp_path / "one")
    mapped = Index.load(tmp_path / "one", embedder, mmap=True)
    mapped.calibrate(x[300:], y[300:])
    mapped.save(tmp_path / "one")
    mapped.save(tmp_path / "two")
    expected = mapped.search(x[:20], k=9).columns()
    (tmp_path / "one").unlink()
    found = Index.load(tmp_path / "two", embedder).search(x[:20], k=9).columns()
    assert all(np.array_equal(values, found[name]) for name, values in expected.items())


def test_ids_and_changes_go_on_after_a_restart(points, embedder, tmp_path):
    x, y = points
    index = embedder.index(x[:100], y[:100], progress=False)
    index.remove([98, 99])
    index.add(x[100:101], y[100:101])
    assert index.ids[-1] == 100, "no id is given twice"
    index.remove([100])
    index.save(tmp_path / "index")
    again = Index.load(tmp_path / "index", embedder)
    again.add(x[101:103], y[101:103])
    assert again.ids[-2:].tolist() == [101, 102]
    assert (index.changes, again.changes) == (4, 6)


def test_negative_ids_go_through_a_file(points, embedder, tmp_path):
    index = embedder.index(*points, ids=np.arange(-len(points[0]), 0) - 50)
    index.save(tmp_path / "index")
    again = Index.load(tmp_path / "index", embedder)
    assert again.ids.tolist() == index.ids.tolist()
    for one in (index, again):
        one.add(points[0][:2], points[1][:2])
        assert len(set(one.ids.tolist())) == len(one)
    assert again.ids.tolist() == index.ids.tolist()


def test_an_index_is_saved_where_faiss_gives_tensors(tmp_path):
    """pytorch-metric-learning imports ``faiss.contrib.torch_utils``, which changes FAISS itself."""
    code = f"""
import torch
import faiss.contrib.torch_utils
from laplace_metric import Index, LaplaceEmbedder
x, y = torch.randn(200, 8, generator=torch.Generator().manual_seed(0)), torch.arange(200) % 4
embedder = LaplaceEmbedder.from_embeddings(x, y)
for engine in ("ivf", "hnsw"):
    folder = {str(tmp_path)!r} + "/" + engine
    index = embedder.index(x, y, engine=engine, progress=False)
    index.save(folder)
    index.add(x[:5] + 1, y[:5])
    assert (Index.load(folder, embedder).search(x[:9], 3).ids[:, 0] == list(range(9))).all()
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_new_calibration_is_of_the_search_that_it_was_made_with(points, embedder, tmp_path):
    """A loaded index searches exactly; the search that calibrated it before is over then."""
    x, y = points
    index = embedder.index(x[:300], y[:300], rank_by="mean", progress=False)
    items = index.items.encoded.mean.double().numpy()

    def poor(queries, k):
        gaps = ((queries[:, None] - items) ** 2).sum(-1)
        missed = np.where(np.arange(300) % 3 == 0, 1e3, 0.0)
        return np.where(gaps < 1e-8, 0, gaps + missed).argsort(1)[:, :k]

    first = index.searched_by(poor)
    first.calibrate(x[300:], y[300:])
    first.save(tmp_path / "index")
    loaded = Index.load(tmp_path / "index", embedder)
    loaded.searched_by(poor)  # the one that calibrated it
    loaded.calibrate(x[300:], y[300:])
    with pytest.warns(StaleCalibrationWarning, match="search that calibrated this index 100%"):
        loaded.searched_by(poor)

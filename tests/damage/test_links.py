"""Links and pipes that somebody planted in a folder."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from laplace_metric import LaplaceEmbedder
from laplace_metric import io as files
from laplace_metric.cli import main
from laplace_metric.cli._output_paths import discard
from laplace_metric.datasets import load_folder
from laplace_metric.distributed._fit_on_disk import Checkpoint
from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.models._disk_rows import NOTE, DiskRows
from tests.damage.links import _seen as seen

pytestmark = pytest.mark.skipif(os.name != "posix", reason="links and pipes")
TOKEN = "0123456789abcdef"
THING = files.Kind("thing", "a saved value", 1)
HIDDEN = f".thing.{TOKEN}.tmp"


@pytest.fixture
def victim(tmp_path):
    """A folder outside, with files of every name that a writer may remove; untouched at the end."""
    folder = tmp_path / "victim"
    folder.mkdir()
    for name in ("thing", HIDDEN, "checkpoint.safetensors", "features.bin", "names"):
        (folder / name).write_text('["thing"]')
    before = seen(folder)
    yield folder
    assert seen(folder) == before


@pytest.fixture
def value(tmp_path):
    """A folder with a value."""
    folder = tmp_path / "value"
    save(folder, 1)
    return folder


def save(folder, n):
    part = files.Part(THING, {"n": n}, {"x": torch.full((2,), float(n))})
    files.write(folder / "thing", part)


def load(folder):
    return files.read(folder / "thing", THING)[0]["n"]


PLANTS = {
    "leftover": lambda folder, victim: (folder / HIDDEN).symlink_to(victim / "thing"),
    "leftover, a folder": lambda folder, victim: (folder / HIDDEN).symlink_to(victim),
    "leftover to nothing": lambda folder, victim: (folder / HIDDEN).symlink_to(victim / "new"),
    "the value": lambda folder, victim: (
        (folder / "thing").unlink(),
        (folder / "thing").symlink_to(victim / "thing"),
    ),
}


@pytest.mark.parametrize("name", PLANTS)
def test_what_is_planted_leads_nowhere(name, value, victim):
    PLANTS[name](value, victim)
    before = seen(value)
    if name != "the value":
        assert load(value) == 1
    assert seen(value) == before
    save(value, 2)
    assert load(value) == 2
    assert [path.name for path in value.iterdir()] == ["thing"]
    assert not (value / "thing").is_symlink()


def test_a_pipe_called_like_a_leftover_is_left_alone(value):
    os.mkfifo(value / HIDDEN)
    save(value, 2)
    assert load(value) == 2
    assert (value / HIDDEN).is_fifo()


def test_a_lock_that_is_a_link_is_refused(tmp_path, victim):
    for goal in ("new", "thing"):
        (tmp_path / ".lock").symlink_to(victim / goal)
        with pytest.raises(OSError, match=r"\.lock"), files.locked(tmp_path / ".lock"):
            raise AssertionError
        (tmp_path / ".lock").unlink()


def test_features_that_are_not_finished(tmp_path, victim):
    rows = DiskRows(tmp_path / "rows")
    rows.append(torch.ones(2, 3), torch.tensor([0, 1]))
    rows.commit()
    (tmp_path / "rows" / f".{NOTE}.{TOKEN}.tmp").symlink_to(victim)
    assert len(DiskRows(tmp_path / "rows")) == 2
    assert not list((tmp_path / "rows").glob(".*"))
    (tmp_path / "rows" / "labels.bin").unlink()
    (tmp_path / "rows" / "labels.bin").symlink_to(victim / "names")
    with pytest.raises(FileFormatError, match="is a link"):
        rows.append(torch.ones(2, 3), torch.tensor([0, 1]))


def test_parts_of_a_checkpoint_that_are_links(tmp_path, victim):
    checkpoint = Checkpoint(tmp_path / "c", {"a": 1})
    for name in ("features", "pass-0000.safetensors", "columns.safetensors"):
        (tmp_path / "c" / name).symlink_to(victim)
    works = (
        lambda: checkpoint.store(torch.device("cpu"), None),
        lambda: checkpoint.keep(0, SimpleNamespace(save=Path.touch)),
        lambda: checkpoint.finished(0, None),
        lambda: checkpoint.columns(list),
    )
    for work in works:
        with pytest.raises(FileFormatError, match="is a link"):
            work()
    checkpoint.close()
    for name in ("features", "pass-0000.safetensors"):
        (tmp_path / "c" / name).unlink()
    (tmp_path / "c" / "features").mkdir()
    (tmp_path / "c" / "features" / f".{NOTE}.{TOKEN}.tmp").symlink_to(victim)
    assert len(checkpoint.store(torch.device("cpu"), None)) == 0


def test_a_working_folder_that_is_a_link_is_discarded(tmp_path, victim):
    for name in ("parts", "parts.gone"):
        (tmp_path / name).symlink_to(victim)
        discard(tmp_path / "parts")
        assert not (tmp_path / "parts").is_symlink()
        assert not (tmp_path / "parts.gone").is_symlink()
    (tmp_path / "parts.gone").symlink_to(victim)
    (tmp_path / "parts").mkdir()
    discard(tmp_path / "parts")
    assert not (tmp_path / "parts").exists()


def test_commands_refuse_a_link_in_place_of_their_working_folder(
    tmp_path, victim, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    y = np.arange(40) % 4
    np.savez("items.npz", embeddings=np.random.default_rng(0).normal(size=(40, 4)), labels=y)
    fit = ["fit", "items.npz", "--output", "p", "--quiet"]
    planted = Path(".p.checkpoint")
    planted.symlink_to(victim)
    assert main(fit) in (1, 2)
    assert planted.name in capsys.readouterr().err
    planted.unlink()
    assert main(fit) == 0


@pytest.mark.parametrize("kind", ["pipe", "zero"])
def test_a_pipe_or_a_device_among_images(tmp_path, kind):
    Image.new("L", (4, 4)).save(tmp_path / "a.png")
    os.mkfifo(tmp_path / "b.png") if kind == "pipe" else (tmp_path / "b.png").symlink_to(
        "/dev/zero"
    )
    with pytest.raises(InputError, match=r"b\.png .*regular file"):
        load_folder(tmp_path, size=4)[1]
    with pytest.raises(OSError, match="not.*regular file"):
        files.sha256_of(tmp_path / "b.png")


@pytest.mark.parametrize("kind", ["pipe", "zero"])
def test_a_pipe_or_a_device_in_place_of_a_saved_file(value, kind):
    path = value / "thing"
    path.unlink()
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
    with pytest.raises(FileFormatError, match="thing.*not a regular"):
        load(value)


def test_the_meta_device_is_named():
    with torch.device("meta"), pytest.raises(InputError, match="default device.*'meta'"):
        LaplaceEmbedder(torch.nn.Linear(2, 2)).fit([], progress=False)

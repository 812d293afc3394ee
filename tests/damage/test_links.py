"""Links, pipes and notes that somebody planted in a folder."""

from __future__ import annotations

import os
from contextlib import suppress
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
from laplace_metric.distributed._checkpoint import Checkpoint
from laplace_metric.errors import FileFormatError, InputError, WriteError
from laplace_metric.models._store import DiskRows
from tests.damage.links import _seen as seen

pytestmark = pytest.mark.skipif(os.name != "posix", reason="links and pipes")
TOKEN = "0123456789abcdef"
THING, OTHER = (files.FileKind(name, "a saved value", 1) for name in ("thing", "other"))
HIDDEN = f".thing.{TOKEN}.tmp"


@pytest.fixture
def victim(tmp_path):
    """A folder outside, with files of every name that a writer may remove; untouched at the end."""
    folder = tmp_path / "victim"
    folder.mkdir()
    for name in (
        "thing.json",
        "names",
        "content",
        "checkpoint.json",
        "features.bin",
    ):
        (folder / name).write_text('["thing.json"]')
    (folder / HIDDEN).mkdir()
    (folder / HIDDEN / "thing.json").write_text("{}")
    before = seen(folder)
    yield folder
    assert seen(folder) == before


@pytest.fixture
def value(tmp_path):
    """A folder with a value of each kind."""
    folder = tmp_path / "value"
    for kind in (THING, OTHER):
        save(folder, 1, kind)
    return folder


def save(folder, n, kind=THING):
    files.write(folder, {"n": n}, {"x": torch.full((2,), float(n))}, kind)


def load(folder, kind=THING):
    return files.read(folder, kind)[0]["n"]


def commit(folder, n, kinds=(THING, OTHER), *, place=None, moved=0):
    """As a process killed after it committed a batch and moved so many of its JSONs."""
    moves, move = [], files.replace_file

    def killed(source, target):
        if target.suffix == ".json":
            moves.append(target)
            if len(moves) > moved:
                raise KeyboardInterrupt
        move(source, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "replace_file", killed)
        patch.setattr(files, "_clean", lambda *_: None)
        with suppress(KeyboardInterrupt), files.together(folder):
            for kind in kinds:
                save(place or folder, n, kind)
    assert len(moves) == moved + 1


@pytest.mark.parametrize("moved", [0, 1])
def test_a_reader_sees_what_was_committed_and_writes_nothing(value, moved):
    commit(value, 2, moved=moved)
    before = seen(value)
    assert [load(value, kind) for kind in (THING, OTHER)] == [2, 2]
    assert seen(value) == before
    save(value, 3)  # a writer of one value finishes that one
    assert [load(value, kind) for kind in (THING, OTHER)] == [3, 2]
    with files.together(value):  # a writer of a batch finishes all
        pass
    assert [load(value, kind) for kind in (THING, OTHER)] == [3, 2]
    for kind in (THING, OTHER):
        save(value, 4, kind)
    assert not [path.name for path in value.iterdir() if path.name.startswith(".")]


def test_a_batch_that_was_not_committed_is_not_seen(value):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_clean", lambda *_: None)
        patch.setattr(files, "_note", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError), files.together(value):
            save(value, 2)
    assert load(value) == 1
    with files.together(value):
        save(value, 3)
    assert load(value) == 3
    assert not [path.name for path in value.iterdir() if path.name.startswith(".")]


PLANTS = {
    "leftover": lambda folder, victim: (folder / HIDDEN).symlink_to(victim),
    "leftover, committed": lambda folder, victim: (
        (folder / HIDDEN).symlink_to(victim / HIDDEN),
        (folder / ".together").write_text(TOKEN),
    ),
    "journal": lambda folder, victim: (
        (folder / HIDDEN).mkdir(),
        (folder / HIDDEN / "names").symlink_to(victim / "names"),
    ),
    "ready JSON": lambda folder, victim: (
        (folder / HIDDEN).mkdir(),
        (folder / HIDDEN / "thing.json").symlink_to(victim / "thing.json"),
        (folder / ".together").write_text(TOKEN),
    ),
    "note": lambda folder, victim: (folder / ".together").symlink_to(victim / "thing.json"),
    "note to nothing": lambda folder, victim: (folder / ".together").symlink_to(victim / "new"),
    "folder below, committed": lambda folder, victim: (
        (folder / "below").symlink_to(victim),
        (folder / ".together").write_text(TOKEN),
    ),
    "current JSON": lambda folder, victim: (
        (folder / "thing.json").unlink(),
        (folder / "thing.json").symlink_to(victim / "thing.json"),
    ),
}


@pytest.mark.parametrize("name", PLANTS)
def test_what_is_planted_leads_nowhere(name, value, victim):
    PLANTS[name](value, victim)
    before = seen(value)
    if name != "current JSON":
        assert load(value) == 1
    assert seen(value) == before
    with files.together(value):
        save(value, 2)
    assert load(value) == 2
    assert not (value / HIDDEN).is_symlink()
    assert not (value / ".together").is_symlink()


def test_a_lock_that_is_a_link_is_refused(value, victim):
    for goal in ("new", "thing.json"):
        (value / ".thing.lock").symlink_to(victim / goal)
        with pytest.raises(WriteError, match=r"\.thing\.lock"):
            save(value, 2)
        (value / ".thing.lock").unlink()


def test_a_folder_of_a_batch_that_is_a_link_is_refused(value, victim):
    (value / "below").symlink_to(victim)
    with pytest.raises(FileFormatError, match="below is a link"), files.together(value):
        save(value / "below", 2)


def test_features_that_are_not_finished(tmp_path, victim):
    rows = DiskRows(tmp_path / "rows")
    rows.append(torch.ones(2, 3), torch.tensor([0, 1]))
    rows.commit()
    (tmp_path / "rows" / f".features.{TOKEN}.tmp").symlink_to(victim)
    assert len(DiskRows(tmp_path / "rows")) == 2
    assert not list((tmp_path / "rows").glob(".*"))
    (tmp_path / "rows" / "labels.bin").unlink()
    (tmp_path / "rows" / "labels.bin").symlink_to(victim / "names")
    with pytest.raises(FileFormatError, match="is a link"):
        rows.append(torch.ones(2, 3), torch.tensor([0, 1]))


def test_parts_of_a_checkpoint_that_are_links(tmp_path, victim):
    checkpoint = Checkpoint(tmp_path / "c", {"a": 1})
    for name in ("features", "pass-0000", "columns"):
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
    (tmp_path / "c" / "features").unlink()
    (tmp_path / "c" / "features").mkdir()
    (tmp_path / "c" / "features" / f".features.{TOKEN}.tmp").symlink_to(victim)
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
    planted = Path("p/.checkpoint")
    planted.parent.mkdir()
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
    with pytest.raises(InputError, match=r"b\.png .*not a regular file"):
        load_folder(tmp_path, size=4)[1]
    with pytest.raises(OSError, match="not a regular file"):
        files.sha256_of(tmp_path / "b.png")


@pytest.mark.parametrize("kind", ["pipe", "zero"])
def test_a_pipe_or_a_device_in_place_of_a_saved_file(value, kind):
    (tensors,) = value.glob("thing-*.safetensors")
    for path in (tensors, value / "thing.json"):
        path.unlink()
        os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
        with pytest.raises(FileFormatError):
            load(value)


def test_the_meta_device_is_named():
    with torch.device("meta"), pytest.raises(InputError, match="default device is 'meta'"):
        LaplaceEmbedder(torch.nn.Linear(2, 2)).fit([], progress=False)

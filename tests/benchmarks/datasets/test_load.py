from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.datasets import NAMES, READERS, load
from laplace_metric import datasets
from laplace_metric.errors import InputError, UnknownNameError

BY_HAND = [name for name, reader in READERS.items() if reader.by_hand]


def test_names_of_both_tables() -> None:
    assert set(NAMES) == {*datasets.NAMES, "svhn", "cars196", "lfw"}
    assert BY_HAND == ["cars196", "lfw"]
    with pytest.raises(UnknownNameError, match=r"name='cifar100'.*'digits'.*'svhn'.*'lfw'"):
        load("cifar100")
    with pytest.raises(UnknownNameError, match=r"split='valid'.*'train', 'test'"):
        load("svhn", "valid")
    with pytest.raises(UnknownNameError, match="name='svhn'"):
        datasets.load("svhn")
    assert len(load("digits", "test")) == 500


@pytest.mark.parametrize("name", READERS)
def test_no_folder_given(name: str) -> None:
    with pytest.raises(InputError, match=r"pass data=FOLDER .* or set .* LAPLACE_METRIC_DATA"):
        load(name)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("split", ["train", "test"])
def test_empty_folder_from_argument_or_variable(
    name: str, split: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = "put the originals there by hand" if name in BY_HAND else "download=True"
    message = rf"{name}/{split} needs the file {re.escape(str(tmp_path))}.*{how}.*http"
    with pytest.raises(InputError, match=message):
        load(name, split, tmp_path)
    monkeypatch.setenv("LAPLACE_METRIC_DATA", str(tmp_path))
    with pytest.raises(InputError, match=message):
        load(name, split)


@pytest.mark.parametrize("name", BY_HAND)
def test_what_is_unpacked_by_hand(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not downloaded; put the originals there by hand"):
        load(name, data=tmp_path, download=True)
    with pytest.raises(InputError, match="colour=True applies to 'photographs' only"):
        load(name, data=tmp_path, colour=True)


def test_size_is_of_photographs() -> None:
    message = r"size=8 applies to photographs, omniglot, .*lfw only, not to 'svhn'"
    with pytest.raises(InputError, match=message):
        load("svhn", size=8)


def test_published_files() -> None:
    for split in ("train", "test"):
        (remote,) = READERS["svhn"].remotes[split]
        assert re.fullmatch("md5:[0-9a-f]{32}", remote.hash)
        assert remote.url.endswith(Path(remote.path).name)

"""Where a reader finds its files, in a data folder or where their authors publish them.

The sha256 were computed from the files themselves; the md5 are those which the authors
(CIFAR-10) or torchvision (KMNIST, Omniglot) publish.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

import torch
from jaxtyping import Int64
from torch import Tensor

from laplace_metric._utils.validation import as_path
from laplace_metric.errors import FileFormatError, InputError, LaplaceMetricError


@dataclass(frozen=True)
class Remote:
    """One published file: its place in the data folder, its address, its ``algorithm:hash``."""

    path: str
    url: str
    hash: str


# name -> folder, site, hashes of: train images and labels, test images and labels
_IDX = {
    "mnist": (
        "MNIST",
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
    "fashion-mnist": (
        "FashionMNIST",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        "sha256:3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "sha256:a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "sha256:346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "sha256:67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
    "kmnist": (
        "KMNIST",
        "http://codh.rois.ac.jp/kmnist/dataset/kmnist",
        "md5:bdb82020997e1d708af4cf47b453dcf7",
        "md5:e144d726b3acfaa3e44228e80efcd344",
        "md5:5c965bf0a639b31b8f53240b1b52f4d7",
        "md5:7320c461ea6c1c855c0b718fb2a4b134",
    ),
}


def _idx_files(name: str, split: str) -> tuple[Remote, ...]:
    folder, site, *hashes = _IDX[name]
    prefix, known = ("train", hashes[:2]) if split == "train" else ("t10k", hashes[2:])
    names = (f"{prefix}-images-idx3-ubyte.gz", f"{prefix}-labels-idx1-ubyte.gz")
    return tuple(
        Remote(f"{folder}/raw/{file}", f"{site}/{file}", sha)
        for file, sha in zip(names, known, strict=True)
    )


_CIFAR10 = Remote(
    "CIFAR10/cifar-10-binary.tar.gz",
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "md5:c32a1d4ab5d03f1284b67883e8d87530",
)
_CIFAR10H = Remote(
    "CIFAR10/cifar10h-counts.npy",
    "https://raw.githubusercontent.com/jcpeterson/cifar-10h/"
    "48da312b193b82e6939ec20f23d1f09cbdd849c8/data/cifar10h-counts.npy",
    "sha256:9b36b4550349af56c79083356312eb4af856cc5fd3caf1f669d40b9d0bbb69ff",
)


def _svhn(split: str, md5: str) -> tuple[Remote, ...]:
    name = f"{split}_32x32.mat"
    url = f"http://ufldl.stanford.edu/housenumbers/{name}"
    return (Remote(f"SVHN/{name}", url, f"md5:{md5}"),)


_OMNIGLOT = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python"

# (name, split) -> the files of that split
REMOTES: dict[tuple[str, str], tuple[Remote, ...]] = {
    **{(name, split): _idx_files(name, split) for name in _IDX for split in ("train", "test")},
    ("cifar10", "train"): (_CIFAR10,),
    ("cifar10", "test"): (_CIFAR10, _CIFAR10H),
    ("svhn", "train"): _svhn("train", "e26dedcc434d2e4c54c9b2d4a06d8373"),
    ("svhn", "test"): _svhn("test", "eb5a983be6a315427106f1b164d9cef3"),
    ("omniglot", "train"): (
        Remote(
            "Omniglot/images_background.zip",
            f"{_OMNIGLOT}/images_background.zip",
            "md5:68d2efa1b9178cc56df9314c21c6e718",
        ),
    ),
    ("omniglot", "test"): (
        Remote(
            "Omniglot/images_evaluation.zip",
            f"{_OMNIGLOT}/images_evaluation.zip",
            "md5:6b91aef0f799c5bb55b94e3f2daec811",
        ),
    ),
}

# What is not downloaded here: what to fetch or pack, and from which page.
BY_HAND = {
    "cub200": "unpack CUB_200_2011.tgz of https://www.vision.caltech.edu/datasets/cub_200_2011/",
    "cub": "CUB/cub100_jpeg.npz with data (the JPEG files one behind the other), offsets, labels, "
    "train and class_names, of https://github.com/serizba/vision, ex03/task2/bird_dataset",
    "emoji": "Emoji/emoji_png96.npz with data (the PNG files one behind the other) and offsets, "
    "and Emoji/emoji.json with codepoints, name, keywords, group and subgroup of each, of "
    "https://github.com/googlefonts/noto-emoji and https://cldr.unicode.org",
    "hierarcaps": "HierarCaps/images_jpeg.npz with data (the JPEG files one behind the other) and "
    "offsets, and HierarCaps/captions.json with the levels of each, of "
    "https://github.com/TAU-VAILab/hierarcaps",
    "cars196": "cars_annos.mat and the unpacked car_ims.tgz, in the folder cars196, of "
    "http://ai.stanford.edu/~jkrause/cars/car_dataset.html",
    "lfw": "unpack lfw.tgz or lfw-deepfunneled.tgz, and put peopleDevTrain.txt and "
    "peopleDevTest.txt next to it, of http://vis-www.cs.umass.edu/lfw/",
}


VARIABLE = "LAPLACE_METRIC_DATA"


@dataclass(frozen=True)
class Request:
    """One call of `load`, as the readers see it; the fields are the arguments of `load`."""

    name: str
    split: str
    data: str | os.PathLike[str] | None = None
    limit: int | None = None
    size: int | None = None
    colour: bool = False

    @property
    def title(self) -> str:
        """Name and split, as it stands in `ImageSet.name`."""
        return f"{self.name}/{self.split}"

    @property
    def remotes(self) -> tuple[Remote, ...]:
        """The published files of this split."""
        return REMOTES.get((self.name, self.split), ())

    def folder(self, create: bool = False) -> Path:
        """The data folder: the argument `data`, else the environment variable.

        Raises
        ------
        InputError
            If neither is set, or it is no folder.
        """
        path = self.data if self.data is not None else os.environ.get(VARIABLE)
        if not path:
            raise InputError(
                f"{self.name!r} is read from a data folder: pass data=FOLDER "
                f"(--data FOLDER on the command line) or set the environment variable {VARIABLE}. "
                f"{self._advice(())}"
            )
        folder = as_path("data", path).expanduser()
        if create:
            folder.mkdir(parents=True, exist_ok=True)
        if not folder.is_dir():
            raise InputError(f"data={str(path)!r} is not a folder.")
        return folder

    def file(self, *choices: str) -> Path:
        """The first of the files `choices` (relative to the data folder) that exists."""
        return self._first("file", Path.is_file, choices)

    def directory(self, *choices: str) -> Path:
        """The first of the folders `choices` (relative to the data folder) that exists."""
        return self._first("folder", Path.is_dir, choices)

    def _first(self, kind: str, exists: Callable[[Path], bool], choices: tuple[str, ...]) -> Path:
        folder = self.folder()
        for choice in choices:
            if exists(folder / choice):
                return folder / choice
        candidates = " or ".join(str(folder / choice) for choice in choices)
        raise InputError(
            f"{self.title} needs the {kind} {candidates}, which is not there. "
            f"{self._advice(choices)}"
        )

    def _advice(self, choices: tuple[str, ...]) -> str:
        if by_hand := BY_HAND.get(self.name):
            return f"It is not downloaded; put the originals there by hand: {by_hand}"
        urls = " ".join(remote.url for remote in self.remotes if remote.path in choices)
        return "Pass download=True, or put the original there by hand" + (
            f": {urls}" if urls else "."
        )

    def rows(self, n: int) -> Int64[Tensor, " rows"]:
        """Rows to keep of `n`: all, or `limit` evenly spaced ones (sorted sets stay mixed)."""
        n_rows = n if self.limit is None else min(self.limit, n)
        return torch.arange(n_rows) * n // max(n_rows, 1)


def download(request: Request) -> tuple[Path, ...]:
    """Fetch what the data folder lacks of one split.

    Nothing is fetched for sets that come with a package, or that are unpacked by hand.
    A file that exists, gzipped or not, is left alone. A new one is checked against its published
    hash before it takes its name.

    Returns
    -------
    tuple of Path
        The files that were fetched.

    Raises
    ------
    LaplaceMetricError
        If pooch is not installed, or an address cannot be reached.
    FileFormatError
        If what was fetched has not the known hash.

    Examples
    --------
    >>> download(Request("digits", "train"))
    ()
    """
    if not request.remotes:
        return ()
    folder = request.folder(create=True)
    missing = [remote for remote in request.remotes if not _present(folder / remote.path)]
    return tuple(_fetch(_pooch(), remote, folder) for remote in missing)


def _present(path: Path) -> bool:
    return path.is_file() or (path.suffix == ".gz" and path.with_suffix("").is_file())


def _pooch() -> ModuleType:
    try:
        return import_module("pooch")
    except ImportError as error:
        raise LaplaceMetricError(
            "download=True needs the package pooch: pip install 'laplace-metric[data]'."
        ) from error


def _fetch(pooch: ModuleType, remote: Remote, folder: Path) -> Path:
    path = folder / remote.path
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        pooch.retrieve(remote.url, remote.hash, fname=path.name, path=path.parent, progressbar=True)
    except ValueError as error:
        raise FileFormatError(
            f"{remote.url} no longer gives the file with {remote.hash} ({error}). Nothing was "
            f"kept; put a copy that you trust at {path}."
        ) from error
    except OSError as error:
        raise LaplaceMetricError(
            f"{remote.url} could not be fetched ({error}). Try again, or put the file at {path} "
            "by hand."
        ) from error
    return path

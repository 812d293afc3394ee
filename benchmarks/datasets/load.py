"""Read an image set by its name."""

from __future__ import annotations

import os
from collections.abc import Callable

from benchmarks.datasets import remotes
from benchmarks.datasets.cifar10 import read_cifar10
from benchmarks.datasets.cub200 import read_cub, read_cub200
from benchmarks.datasets.emoji import emoji_captions, read_emoji
from benchmarks.datasets.hierarcaps import hierarcaps_captions, read_hierarcaps
from benchmarks.datasets.idx import read_mnist_family
from benchmarks.datasets.omniglot import read_omniglot
from benchmarks.datasets.remotes import Request
from benchmarks.datasets.svhn_cars_lfw import read_cars196, read_lfw, read_svhn
from laplace_metric import datasets
from laplace_metric._utils.validation import check_count, check_name
from laplace_metric.datasets import ImageSet
from laplace_metric.datasets._sklearn_sets import NAMES as PACKAGED
from laplace_metric.errors import InputError

READERS: dict[str, Callable[[Request], ImageSet]] = {
    "mnist": read_mnist_family,
    "fashion-mnist": read_mnist_family,
    "kmnist": read_mnist_family,
    "cifar10": read_cifar10,
    "omniglot": read_omniglot,
    "cub200": read_cub200,
    "cub": read_cub,
    "emoji": read_emoji,
    "hierarcaps": read_hierarcaps,
    "svhn": read_svhn,
    "cars196": read_cars196,
    "lfw": read_lfw,
}
CAPTIONS = {"emoji": emoji_captions, "hierarcaps": hierarcaps_captions}
NAMES = (*PACKAGED, *READERS)
SPLITS = ("train", "test")
SIZED = ("photographs", "omniglot", "cub", "emoji", "hierarcaps", "cub200", "cars196", "lfw")


def load(
    name: str,
    split: str = "train",
    data: str | os.PathLike[str] | None = None,
    limit: int | None = None,
    *,
    size: int | None = None,
    colour: bool = False,
    download: bool = False,
) -> ImageSet:
    """Read an image set into memory.

    Parameters
    ----------
    name : str
        One of `NAMES`. ``"digits"`` and ``"photographs"`` come with scikit-learn; the others
        are read from a folder.
    split : {"train", "test"}
        Of Omniglot: the background and the evaluation characters, which differ. Of
        ``"cub200"``: the first and the last half of the classes; of ``"cub"`` (100 of them): the
        images that the authors train and test with. Of the emoji: about 70 and 30 in 100, which
        share no drawing in another skin tone or gender. ``"hierarcaps"`` has ``"test"`` only.
    data : path, optional
        Folder that holds ``MNIST/raw/...``, ``FashionMNIST/raw/...``, ``CIFAR10/...``,
        ``CUB_200_2011/...``, ``Emoji/...`` and so on; default: the environment variable
        ``LAPLACE_METRIC_DATA``.
    limit : int, optional
        Keep at most so many images, evenly spaced over the split.
    size : int, optional
        Side of the square images in pixels, of ``"photographs"`` (patches, default 8),
        ``"omniglot"`` (default 28, original 105), ``"emoji"`` (default and original 96),
        ``"cub200"``, ``"cub"`` and ``"hierarcaps"`` (default 224: the shorter side is resized,
        then the centre cut out) only.
    colour : bool
        Three channels for ``"photographs"``, instead of grey.
    download : bool
        First fetch what `data` lacks of this split, from where its authors publish it (needs
        the extra ``laplace-metric[data]``). Without it nothing is ever fetched. Of birds, emoji
        and captions nothing is fetched: an error says what to put where by hand.

    Raises
    ------
    UnknownNameError
        If `name` or `split` is not known.
    InputError
        If a file is missing (the message names it), or an option is out of range or of
        another set.
    FileFormatError
        If a file is damaged, or a download is not the file that was published.
    LaplaceMetricError
        If a download is impossible.

    Examples
    --------
    >>> load("digits", "test")
    ImageSet('digits/test', 500 images of 1x8x8, 10 classes)
    """
    check_name("name", name, NAMES)
    check_name("split", split, SPLITS)
    _check_options(name, limit, size, colour)
    if name in PACKAGED:
        return datasets.load(name, split, limit, size=size, colour=colour)
    request = Request(name, split, data, limit, size, colour)
    if download:
        remotes.download(request)
    return READERS[name](request)


def captions(
    name: str,
    split: str = "train",
    data: str | os.PathLike[str] | None = None,
    limit: int | None = None,
) -> list[tuple[str, ...]]:
    """The texts of each image, row by row those of `load` with the same arguments.

    Parameters
    ----------
    name : {"emoji", "hierarcaps"}
        Of an emoji the keywords, and last its name. Of a photograph of HierarCaps four captions,
        from the general to the specific.
    split : {"train", "test"}
        As in `load`.
    data : path, optional
        As in `load`.
    limit : int, optional
        As in `load`.

    Returns
    -------
    list of tuple of str
        One tuple an image, which is not empty. After `ImageSet.subset` the emoji are told by
        ``extras["row"]``, the photographs by their labels.

    Raises
    ------
    UnknownNameError
        If there are no texts of that name, or no such split.
    InputError
        If a file is missing, or `limit` is out of range.
    FileFormatError
        If a file is damaged.

    Examples
    --------
    >>> texts = captions("hierarcaps", "test", "data")  # doctest: +SKIP
    >>> texts[1]  # doctest: +SKIP
    ('bird', 'blue bird', 'blue bird sitting on top of branch',
     'A blue bird sitting on the top of a branch with autumn leaves')
    """
    check_name("name", name, CAPTIONS)
    check_name("split", split, SPLITS)
    _check_options(name, limit, None, False)
    return CAPTIONS[name](Request(name, split, data, limit))


def _check_options(name: str, limit: int | None, size: int | None, colour: bool) -> None:
    if limit is not None:
        check_count("limit", limit)
    if size is not None and (isinstance(size, bool) or not isinstance(size, int)):
        raise InputError(f"size={size!r}: pass a whole number of pixels.")
    if size is not None and name not in SIZED:
        raise InputError(f"size={size} applies to {', '.join(SIZED)} only, not to {name!r}.")
    if colour and name != "photographs":
        raise InputError(f"colour=True applies to 'photographs' only, not to {name!r}.")

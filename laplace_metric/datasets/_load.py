"""Read an image set by its name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from laplace_metric._utils.validation import check_count, check_name
from laplace_metric.datasets import _remotes
from laplace_metric.datasets._image_set import ImageSet
from laplace_metric.datasets._remotes import Reader, Request
from laplace_metric.errors import InputError

# name -> the function that reads it, imported when it is called
READERS = {
    "digits": "_sklearn_sets:read_digits",
    "photographs": "_sklearn_sets:read_photographs",
    "mnist": "_idx:read_mnist_family",
    "fashion-mnist": "_idx:read_mnist_family",
    "kmnist": "_idx:read_mnist_family",
    "cifar10": "_cifar10:read_cifar10",
    "omniglot": "_omniglot:read_omniglot",
    "cub200": "_cub200:read_cub200",
    "cub": "_cub200:read_cub",
    "emoji": "_emoji:read_emoji",
    "hierarcaps": "_hierarcaps:read_hierarcaps",
}
CAPTIONS = {
    "emoji": "_emoji:emoji_captions",
    "hierarcaps": "_hierarcaps:hierarcaps_captions",
}
NAMES = tuple(READERS)
SPLITS = ("train", "test")
SIZED = ("photographs", "omniglot", "cub", "emoji", "hierarcaps", "cub200")


def load(
    name: str,
    split: str = "train",
    data: str | os.PathLike[str] | None = None,
    limit: int | None = None,
    *,
    size: int | None = None,
    colour: bool = False,
    download: bool = False,
    readers: Mapping[str, Reader] | None = None,
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
    readers : mapping of name to Reader, optional
        Further image sets, under names of their own.

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
    readers = readers or {}
    check_name("name", name, (*NAMES, *readers))
    check_name("split", split, SPLITS)
    sized = (*SIZED, *(key for key, one in readers.items() if one.sized))
    _check_options(name, limit, size, colour, sized)
    reader = readers.get(name)
    request = Request(name, split, data, limit, size, colour, reader)
    if download:
        _remotes.download(request)
    if reader is not None:
        return reader.read(request)
    images: ImageSet = _function(READERS[name])(request)
    return images


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
    _check_options(name, limit, None, False, SIZED)
    texts: list[tuple[str, ...]] = _function(CAPTIONS[name])(Request(name, split, data, limit))
    return texts


def _function(place: str) -> Callable[[Request], Any]:
    module, function = place.split(":")
    read: Callable[[Request], Any] = getattr(
        import_module(f"laplace_metric.datasets.{module}"), function
    )
    return read


def _check_options(
    name: str, limit: int | None, size: int | None, colour: bool, sized: tuple[str, ...]
) -> None:
    if limit is not None:
        check_count("limit", limit)
    if size is not None and (isinstance(size, bool) or not isinstance(size, int)):
        raise InputError(f"size={size!r}: pass a whole number of pixels.")
    if size is not None and name not in sized:
        raise InputError(f"size={size} applies to {', '.join(sized)} only, not to {name!r}.")
    if colour and name != "photographs":
        raise InputError(f"colour=True applies to 'photographs' only, not to {name!r}.")

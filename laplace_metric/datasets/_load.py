"""Read an image set by its name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module

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
}
NAMES = tuple(READERS)
SPLITS = ("train", "test")
SIZED = ("photographs", "omniglot", "cub200")


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
        Of Omniglot: the background and the evaluation characters, which differ. Of CUB-200: the
        first and the last half of the classes.
    data : path, optional
        Folder that holds ``MNIST/raw/...``, ``FashionMNIST/raw/...``, ``CIFAR10/...``,
        ``CUB_200_2011/...`` and so on; default: the environment variable
        ``LAPLACE_METRIC_DATA``.
    limit : int, optional
        Keep at most so many images, evenly spaced over the split.
    size : int, optional
        Side of the square images in pixels, of ``"photographs"`` (patches, default 8),
        ``"omniglot"`` (default 28, original 105) and ``"cub200"`` (default 224: the shorter side
        is resized, then the centre cut out) only.
    colour : bool
        Three channels for ``"photographs"``, instead of grey.
    download : bool
        First fetch what `data` lacks of this split, from where its authors publish it (needs
        the extra ``laplace-metric[data]``). Without it nothing is ever fetched. The archive of
        ``"cub200"`` is to be unpacked by hand.
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
    module, function = READERS[name].split(":")
    return getattr(import_module(f"laplace_metric.datasets.{module}"), function)(request)


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

"""Where the original files are published, and the hashes that tell them from damaged ones.

The sha256 were computed from the files themselves; the md5 are those which the authors
(CIFAR-10) or torchvision (KMNIST, Omniglot, SVHN) publish.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Remote:
    """One published file: its place in the data folder, its address, its ``algorithm:hash``."""

    path: str
    url: str
    hash: str


def _idx(folder: str, site: str, prefix: str, images: str, labels: str) -> tuple[Remote, ...]:
    names = (f"{prefix}-images-idx3-ubyte.gz", f"{prefix}-labels-idx1-ubyte.gz")
    return tuple(
        Remote(f"{folder}/raw/{name}", f"{site}/{name}", known)
        for name, known in zip(names, (images, labels), strict=True)
    )


_MNIST = ("MNIST", "https://ossci-datasets.s3.amazonaws.com/mnist")
_FASHION = ("FashionMNIST", "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com")
_KMNIST = ("KMNIST", "http://codh.rois.ac.jp/kmnist/dataset/kmnist")

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
_OMNIGLOT = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python"
_SVHN = "http://ufldl.stanford.edu/housenumbers"

# (name, split) -> the files of that split
REMOTES: dict[tuple[str, str], tuple[Remote, ...]] = {
    ("mnist", "train"): _idx(
        *_MNIST,
        "train",
        "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    ),
    ("mnist", "test"): _idx(
        *_MNIST,
        "t10k",
        "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
    ("fashion-mnist", "train"): _idx(
        *_FASHION,
        "train",
        "sha256:3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "sha256:a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    ),
    ("fashion-mnist", "test"): _idx(
        *_FASHION,
        "t10k",
        "sha256:346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "sha256:67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
    ("kmnist", "train"): _idx(
        *_KMNIST,
        "train",
        "md5:bdb82020997e1d708af4cf47b453dcf7",
        "md5:e144d726b3acfaa3e44228e80efcd344",
    ),
    ("kmnist", "test"): _idx(
        *_KMNIST,
        "t10k",
        "md5:5c965bf0a639b31b8f53240b1b52f4d7",
        "md5:7320c461ea6c1c855c0b718fb2a4b134",
    ),
    ("cifar10", "train"): (_CIFAR10,),
    ("cifar10", "test"): (_CIFAR10, _CIFAR10H),
    ("svhn", "train"): (
        Remote(
            "SVHN/train_32x32.mat",
            f"{_SVHN}/train_32x32.mat",
            "md5:e26dedcc434d2e4c54c9b2d4a06d8373",
        ),
    ),
    ("svhn", "test"): (
        Remote(
            "SVHN/test_32x32.mat",
            f"{_SVHN}/test_32x32.mat",
            "md5:eb5a983be6a315427106f1b164d9cef3",
        ),
    ),
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

# Archives of photographs, which are not downloaded here: what to fetch, and from which page.
BY_HAND = {
    "cub200": "unpack CUB_200_2011.tgz of https://www.vision.caltech.edu/datasets/cub_200_2011/",
    "cars196": "cars_annos.mat and the unpacked car_ims.tgz, in the folder cars196, of "
    "http://ai.stanford.edu/~jkrause/cars/car_dataset.html",
    "lfw": "unpack lfw.tgz or lfw-deepfunneled.tgz, and put peopleDevTrain.txt and "
    "peopleDevTest.txt beside it, of http://vis-www.cs.umass.edu/lfw/",
}

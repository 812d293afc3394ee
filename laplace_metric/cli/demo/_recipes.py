"""What the demo trains on and compares with: plain values, for ``--help`` imports them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class OODSet:
    """An out-of-distribution set: its name in `datasets.load`, its title, options of `load`."""

    name: str
    title: str
    options: dict[str, int | bool] = field(default_factory=dict)


@dataclass(frozen=True)
class DemoRecipe:
    """One demonstration.

    Parameters
    ----------
    dataset : str
        Name in `datasets.load`.
    noun : str
        What its images show, in the plural.
    ood_sets : tuple of OODSet
    n_seen : int or None
        Classes 0 to n_seen - 1 are trained on, the others held out. None: the test split holds
        other classes than the train split (Omniglot).
    epochs, batch_size, classes_per_batch : int
        Of training; a batch holds equally many images of each of its classes.
    n_seeds : int
        Networks trained, each with its own seed.
    n_train, n_queries : int
        About so many training images, and inputs in each evaluated set, at most.
    """

    dataset: str
    noun: str
    ood_sets: tuple[OODSet, ...]
    n_seen: int | None = 7
    epochs: int = 15
    batch_size: int = 64
    classes_per_batch: int = 7
    n_seeds: int = 1
    n_train: int = 10_000
    n_queries: int = 1_000


MNIST = OODSet("mnist", "handwritten digits (MNIST)")
KMNIST = OODSet("kmnist", "Japanese letters (KMNIST)")
FASHION = OODSet("fashion-mnist", "clothes (FashionMNIST)")
GREY = OODSet("photographs", "patches of photographs")
COLOUR = OODSet("photographs", "patches of photographs", {"size": 32, "colour": True})

RECIPES: dict[str, DemoRecipe] = {
    recipe.dataset: recipe
    for recipe in (
        DemoRecipe("digits", "handwritten digits", (GREY,), n_seeds=3, n_queries=500),
        DemoRecipe("fashion-mnist", "clothes", (MNIST, KMNIST)),
        DemoRecipe("mnist", "handwritten digits", (FASHION, KMNIST)),
        DemoRecipe("cifar10", "photographs of animals and vehicles", (COLOUR,)),
        DemoRecipe(
            "omniglot",
            "handwritten characters",
            (KMNIST, MNIST),
            n_seen=None,
            n_train=20_000,
            batch_size=128,
            classes_per_batch=32,
        ),
    )
}
DEFAULT = "digits"

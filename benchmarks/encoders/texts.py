"""A labelled text set that every user has: what SciPy's public functions say they do.

A text is the first sentence of a docstring without the function's own name, its class the
sub-package. A sentence that several sub-packages share is nobody's and left out.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import takewhile
from types import ModuleType

import torch
from torch import Tensor

PACKAGES = ("scipy",)
# class -> the modules whose public names it takes
MODULES: dict[str, tuple[str, ...]] = {
    "cluster": ("cluster.hierarchy", "cluster.vq"),
    "fft": ("fft",),
    "integrate": ("integrate",),
    "interpolate": ("interpolate",),
    "linalg": ("linalg",),
    "ndimage": ("ndimage",),
    "optimize": ("optimize",),
    "signal": ("signal",),
    "sparse": ("sparse", "sparse.linalg"),
    "sparse.csgraph": ("sparse.csgraph",),
    "spatial": ("spatial", "spatial.distance"),
    "special": ("special",),
    "stats": ("stats", "stats.qmc", "stats.mstats", "stats.contingency", "stats.sampling"),
}
CLASSES = tuple(MODULES)
SPLITS = ("train", "test")
TEST_SHARE = 0.3
MIN_WORDS = 3


@dataclass(frozen=True)
class TextSet:
    """Texts and their classes, aligned: ``labels`` [N] int64 are indices into ``class_names``."""

    texts: tuple[str, ...]
    labels: Tensor
    class_names: tuple[str, ...] = CLASSES

    def __len__(self) -> int:
        return len(self.texts)

    def batches(self, size: int) -> Iterator[tuple[list[str], Tensor]]:
        """(texts, labels [b]), ``size`` at a time."""
        for start in range(0, len(self), size):
            yield list(self.texts[start : start + size]), self.labels[start : start + size]


def load_texts(split: str | None = None, seed: int = 0) -> TextSet:
    """All texts, or one split; 30 % of each class, drawn from ``seed``, are the test split.

    The order is that of the classes and, inside one, of the alphabet.

    Raises
    ------
    ValueError
        If there is no such split.
    """
    items = sorted(_texts().items(), key=lambda item: (item[1], item[0]))
    texts, labels = tuple(text for text, _ in items), torch.tensor([y for _, y in items])
    if split is None:
        return TextSet(texts, labels)
    if split not in SPLITS:
        raise ValueError(f"split={split!r} is not one of {SPLITS}")
    rows = (_is_test(labels, seed) == (split == "test")).nonzero().flatten()
    return TextSet(tuple(texts[row] for row in rows.tolist()), labels[rows])


def _is_test(labels: Tensor, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        rows = (labels == label).nonzero().flatten()
        order = torch.randperm(len(rows), generator=generator)
        mask[rows[order[: round(TEST_SHARE * len(rows))]]] = True
    return mask


@cache
def _texts() -> dict[str, int]:
    """text -> class, of the texts that one class alone has."""
    classes: dict[str, set[int]] = defaultdict(set)
    for label, modules in enumerate(MODULES.values()):
        for name in modules:
            for text, _ in _summaries(import_module(f"scipy.{name}")):
                classes[text].add(label)
    return {text: min(labels) for text, labels in classes.items() if len(labels) == 1}


def next_sentences() -> dict[str, str]:
    """Text -> what the description says next, of those that go on; the first one's, if several."""
    found: dict[str, str] = {}
    for name in (name for modules in MODULES.values() for name in modules):
        for text, further in _summaries(import_module(f"scipy.{name}")):
            if len(further.split()) >= MIN_WORDS:
                found.setdefault(text, further)
    return found


def _summaries(module: ModuleType) -> Iterator[tuple[str, str]]:
    """First sentences of descriptions, and the next ones."""
    public = getattr(module, "__all__", None) or [n for n in dir(module) if n[0] != "_"]
    for name in public:
        value = getattr(module, name, None)
        if callable(value) and value.__doc__:
            text, further = (summary(name, value.__doc__, place) for place in (0, 1))
            if len(text.split()) >= MIN_WORDS:
                yield text, further


def summary(name: str, docstring: str, place: int = 0) -> str:
    r"""The first sentence of a docstring, without ``name`` and without the package's name.

    ``place``: another sentence; "" behind the last one of the description, which ends at the first
    section.

    Examples
    --------
    >>> docstring = "gamma(z, out=None)\n\nThe gamma function\nof Euler. More."
    >>> summary("gamma", docstring), summary("gamma", docstring, 1)
    ('The function of Euler.', 'More.')
    """
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", docstring)]
    heading = r"\w+( \w+)? -----*"
    other = rf"$|(\S+ = )?{re.escape(name)}\(|\.\. |{heading}"  # signature, directive, heading
    description = list(takewhile(lambda part: not re.match(heading, part), paragraphs))
    prose = [part for part in description if not re.match(other, part)]
    sentences = [x for part in prose for x in re.split(r"(?<=[a-z)`][.!?]) (?=[A-Z`])", part)]
    sentence = sentences[place] if place < len(sentences) else ""
    without = re.sub(rf"`*\b({re.escape(name)}|scipy(\.\w+)*)\b`*", "", sentence, flags=re.I)
    return " ".join(without.split())

"""Features that a command computed, for the commands that follow: the network runs once an item.

A batch is known again by all that decides what it gives at the head, to the last bit:

    key = sha256(network, its answer to fixed inputs, content of the items in their order)

The content of an item is the sha256 of its file and how images are read, where we or a published
library read them; else of the tensor or the text that enters the network. What enters a network
with an item decides its last digits too (kernels, padding), so a batch counts as a whole: another
order, another ``--batch-size`` or another item in it, and it is computed again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import PIL
from torch import Tensor, nn

from laplace_metric._utils.files import digest
from laplace_metric._utils.version import __version__
from laplace_metric.cli.models._feature_files import FeatureFiles
from laplace_metric.cli.models._identity import network_answer, network_identity
from laplace_metric.cli.sources import Source
from laplace_metric.models import Inputs, device_of, to_device
from laplace_metric.models.heads import HeadActivations, LocatedHead, SeenInputs, capture


@dataclass
class KeptFeatures:
    """What a network gives at its head for the items of sources, from files where it is known.

    Parameters
    ----------
    model : nn.Module
    head : LocatedHead
    files : FeatureFiles or None
        None: everything is computed, and nothing is kept.
    reads : str or None
        What a model's own transform does to images, "" without one; None: not known.
    """

    model: nn.Module
    head: LocatedHead
    files: FeatureFiles | None
    reads: str | None
    found: int = 0
    """Items that came from files."""
    computed: int = 0
    _network: str | None = None
    _answers: dict[str, str | None] = field(default_factory=dict)

    def of(self, source: Source) -> Source:
        """The same items, whose batches are asked for here."""
        return replace(source, encode=partial(self._seen, self._named(source)))

    def summary(self) -> str | None:
        """Where the features came from; None if nothing was asked for, or nothing is kept."""
        total = self.found + self.computed
        if self.files is None or not total:
            return None
        rest = f", {self.computed:,} were computed" if self.computed else ""
        return f"features of {self.found:,} of {total:,} items came from {self.files.folder}{rest}"

    def _seen(self, network: str | None, source: Source, rows: Sequence[int]) -> SeenInputs:
        """Files are read, or the network runs, when these inputs are asked what they give."""
        return SeenInputs(self.head, len(rows), partial(self._look, network, source, rows))

    def _look(self, network: str | None, source: Source, rows: Sequence[int]) -> HeadActivations:
        if self.files is None or network is None:
            return self._run(source.read(rows))
        by_file = source.hashes is not None and self.reads is not None
        inputs = None if by_file else source.read(rows)
        key = self._key(network, source, rows, inputs)
        seen = self.files.get(key)
        if seen is not None:
            self.found += len(rows)
            return seen
        seen = self._run(source.read(rows) if inputs is None else inputs)
        if key == self._key(network, source, rows, inputs):  # else a file has changed meanwhile
            self.files.put(key, seen)
        return seen

    def _run(self, inputs: Inputs) -> HeadActivations:
        seen = capture(self.model, self.head, to_device(inputs, device_of(self.model)))
        self.computed += len(seen.features)
        return seen.contiguous()

    def _named(self, source: Source) -> str | None:
        """The network, with its answer to inputs like those of the source; None: it has none."""
        if self.files is None:
            return None
        if self._network is None:
            self._network = network_identity(self.model, self.head)
        like = source.read([0])
        kind = f"{like.dtype} {like.shape}" if isinstance(like, Tensor) else type(like).__name__
        if kind not in self._answers:
            self._answers[kind] = network_answer(self.model, self.head, like)
        answer = self._answers[kind]
        return None if answer is None else digest(f"{self._network} {answer}")

    def _key(self, network: str, source: Source, rows: Sequence[int], inputs: Inputs | None) -> str:
        if source.hashes is None or inputs is not None:
            return digest(json.dumps([network, content_of(inputs)]))
        how = [self.reads, source.options.get("size"), source.options.get("channels")]
        how += [PIL.__version__, __version__]
        return digest(json.dumps([network, how, source.hashes(rows)]))


def content_of(inputs: Inputs) -> str:
    """sha256 of the tensor or the texts that enter a network.

    Examples
    --------
    >>> content_of(["a"]) == content_of(["b"])
    False
    """
    return digest("", [inputs]) if isinstance(inputs, Tensor) else digest(json.dumps(list(inputs)))

"""The inputs that this package has trained a model on, for as long as the model lives.

A model is most certain of its own training inputs, so that they are no measure of how it does on
new ones. ``training`` and ``online`` note here what they trained on; ``Guard`` and ``cross_index``
ask. Nothing is written to the model of the user: the notes are in a weak dictionary, under each of
its modules whose parameters were trained, and go with these modules.

A copy is found by its weights, while the model that was trained lives. Inputs are recognised by
their values: training on random crops leaves no trace of the pictures they came from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from laplace_metric._utils.validation import as_tensor
from laplace_metric.inputs._batches import ModelInput
from laplace_metric.models._fingerprints import (
    FINGERPRINTS,
    Fingerprints,
    row_fingerprints,
    sorted_fingerprints,
)
from laplace_metric.models._modules import unwrapped

COORDINATES = 4096
"""Numbers of an input, evenly spaced, that its fingerprint is made of: images have far more."""
AT_ONCE = 2**16
"""Fingerprints that are put in order at once."""


class TrainingInputs:
    """Fingerprints of the inputs of a training, collected batch by batch, at most five million."""

    def __init__(self) -> None:
        self._known: Fingerprints = np.zeros(0, np.uint64)
        self._new: list[Fingerprints] = []

    def add(self, inputs: ModelInput) -> None:
        """Note a batch of inputs that the model takes a step on."""
        if len(self._known) < FINGERPRINTS:
            self._new.append(input_fingerprints(inputs))
            if sum(map(len, self._new)) > AT_ONCE:
                self.fingerprints()

    def add_fingerprints(self, known: Fingerprints) -> None:
        """Note what an earlier part of the training was on."""
        self._new.append(known)

    def fingerprints(self) -> Fingerprints:
        """Return the fingerprints so far, sorted, each once."""
        if sum(map(len, self._new)):
            self._known = sorted_fingerprints([self._known, *self._new])
        self._new = []
        return self._known


_TRAINED: WeakKeyDictionary[nn.Module, TrainingInputs] = WeakKeyDictionary()
"""By module with parameters of its own that were trained."""


def note_training(model: nn.Module, trained: Iterable[Tensor]) -> TrainingInputs:
    """Return a record of the inputs of a training that begins.

    Parameters
    ----------
    trained : tensors
        Parameters that the optimiser changes; modules without any stay as they were.
    """
    ids, before, parts = {id(parameter) for parameter in trained}, list[Fingerprints](), []
    for part in unwrapped(model).modules():
        if any(id(parameter) in ids for parameter in part.parameters(recurse=False)):
            parts.append(part)
            if part in _TRAINED:
                before.append(_TRAINED[part].fingerprints())
    record = TrainingInputs()
    for known in before:
        record.add_fingerprints(known)
    for part in parts:
        _TRAINED[part] = record
    return record


def trained_on(model: nn.Module) -> Fingerprints | None:
    """Return the sorted fingerprints of the inputs that a model, or a part of it, was trained on.

    None for a model that this package has not trained, as far as can be seen here.
    """
    records = dict[int, TrainingInputs]()
    for part in unwrapped(model).modules():
        record = _TRAINED.get(part) or _record_of_original(part)
        if record is not None:
            records[id(record)] = record
    known = [record.fingerprints() for record in records.values()]
    return sorted_fingerprints(known) if sum(map(len, known)) else None


def _record_of_original(part: nn.Module) -> TrainingInputs | None:
    """Find the trained module that a part is a copy of: one with the same weights."""
    own = list(part.parameters(recurse=False))
    if not own:
        return None
    for original, record in list(_TRAINED.items()):
        weights = list(original.parameters(recurse=False))
        if type(original) is type(part) and len(weights) == len(own):
            pairs = zip(own, weights, strict=True)
            if all(a.shape == b.shape and torch.equal(a.cpu(), b.cpu()) for a, b in pairs):
                return record
    return None


def input_fingerprints(inputs: ModelInput) -> Fingerprints:
    """Return a fingerprint for each input of a batch, unsorted; none for what cannot be read.

    Tensors and arrays as ``row_fingerprints``, up to rounding; texts by their letters.

    Examples
    --------
    >>> len(input_fingerprints(torch.rand(5, 3, 8, 8))), len(input_fingerprints(["a", "b"]))
    (5, 2)
    """
    if isinstance(inputs, list) and all(isinstance(x, str) for x in inputs):
        digests = [hashlib.sha256(x.encode(errors="surrogatepass")).digest()[:8] for x in inputs]
        return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)
    if isinstance(inputs, Mapping):
        inputs = tuple(inputs[name] for name in sorted(inputs, key=str))
    if isinstance(inputs, np.ndarray):
        parts = [as_tensor("inputs", inputs)]
    elif isinstance(inputs, tuple):
        parts = [part for part in inputs if isinstance(part, Tensor)]
    else:
        parts = [inputs] if isinstance(inputs, Tensor) else []
    rows = [_rows(part) for part in parts if part.ndim and part.layout == torch.strided]
    if not rows or any(len(part) != len(rows[0]) for part in rows) or not rows[0].numel():
        return np.zeros(0, np.uint64)
    found: Fingerprints = row_fingerprints(torch.cat(rows, 1))
    return found


def _rows(part: Tensor) -> Tensor:
    """Return numbers [n, D] of inputs, as float32 so that float64 of the same values agrees."""
    flat = part.detach().reshape(len(part), -1)
    return flat[:, :: 1 + (flat.shape[1] - 1) // COORDINATES].float()

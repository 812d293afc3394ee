"""Calling a model: unwrapped, in evaluation mode, on one checked batch after another."""

from __future__ import annotations

import logging
import operator
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, TypeGuard, TypeVar

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from laplace_metric._utils.progress import ItemBar
from laplace_metric._utils.validation import as_array, as_tensor
from laplace_metric.errors import EmptyLoaderError, InputError, LabelError
from laplace_metric.models._classes import check_missing, have_gaps
from laplace_metric.models._reading import (
    as_batches,
    check_names,
    class_codes,
    dense,
    is_rows,
    items_of,
    names_of,
    note_names,
    plain,
    split_batch,
)
from laplace_metric.models._rows import rows_before
from laplace_metric.models._texts import gathered_texts, grouped_texts

_LOG = logging.getLogger(__name__)
Read = TypeVar("Read")
Inputs = Any
"""A tensor, an array, a data frame, rows of numbers or strings (``model(x)``), a tuple
(``model(*x)``) or a mapping (``model(**x)``)."""


def check_module(model: Any) -> nn.Module:
    """The model itself, if it is a module.

    Raises
    ------
    InputError
        If it is none.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}: pass a torch.nn.Module.")
    return model


def unwrapped(model: Any) -> nn.Module:
    """The module inside ``torch.compile``, ``DataParallel`` and ``DistributedDataParallel``.

    It has the same weights, and its layers have the names that they had before: a posterior that
    was fitted on a compiled model loads on a plain one. Hooks on a wrapper would make
    ``torch.compile`` compile again, and run once on every device of a ``DataParallel``.

    Examples
    --------
    >>> layer = nn.Linear(3, 2)
    >>> unwrapped(nn.DataParallel(layer)) is layer
    True
    """
    module = check_module(model)
    if isinstance(module, (DataParallel, DistributedDataParallel)):
        return unwrapped(module.module)
    compiled = dict(module._modules).get("_orig_mod")  # the name that torch.compile gives, for good
    return module if compiled is None else unwrapped(compiled)


_MODES = threading.RLock()
_SWITCHED: dict[int, tuple[nn.Module, int, bool]] = {}
"""Modules in eval mode for a while, by id: (module, calls that need it so, mode before)."""


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Eval mode without gradients; afterwards each sub-module has the mode that it had before.

    Any number of threads at once: the first call switches a module, the last one switches it back.
    A model that is in eval mode is not touched.
    """
    held: list[nn.Module] = []
    try:
        with _MODES:
            modules = list(model.modules())
            if any(module.training or id(module) in _SWITCHED for module in modules):
                for module in modules:
                    _, calls, training = _SWITCHED.get(id(module), (module, 0, module.training))
                    _SWITCHED[id(module)] = (module, calls + 1, training)
                    held.append(module)
                if any(module.training for module in modules):
                    model.eval()
        with torch.no_grad():
            yield
    finally:
        with _MODES:
            for module in held:
                _, calls, training = _SWITCHED.pop(id(module))
                if calls > 1:
                    _SWITCHED[id(module)] = (module, calls - 1, training)
                else:
                    module.training = training


def call_model(model: nn.Module, inputs: Inputs) -> Any:
    """``model(x)``; ``model(*x)`` for a tuple or list, unless of strings; ``model(**x)``.

    Arrays, data frames and lists of numbers become tensors, of the floating type and on the device
    of the model's weights; a model without weights (``Precomputed``) takes them as they are.
    """
    if isinstance(inputs, Tensor):
        return model(inputs)
    inputs = _tensor_like(model, dense("inputs", gathered_texts("inputs", inputs)))
    if isinstance(inputs, Mapping):
        return model(**{name: _tensor_like(model, plain(x)) for name, x in inputs.items()})
    several = isinstance(inputs, (tuple, list)) and not is_rows(inputs)
    if not several or all(isinstance(x, str) for x in inputs) or hasattr(model, "takes_rows"):
        return model(inputs)
    return model(*inputs)


def _tensor_like(model: nn.Module, inputs: Inputs) -> Inputs:
    """An array or rows of numbers as a tensor, for a model with weights."""
    if not isinstance(inputs, np.ndarray) and not is_rows(inputs):
        return inputs
    weight = next((p for p in model.parameters() if p.is_floating_point()), None)
    if weight is None:
        return inputs
    numbers = as_tensor("inputs", inputs)
    return numbers.to(weight) if numbers.is_floating_point() else numbers.to(weight.device)


def to_device(inputs: Inputs, device: torch.device) -> Inputs:
    """Move every tensor of a (nested) input to ``device``; everything else passes through.

    Raises
    ------
    InputError
        For a tensor without data.
    """
    if isinstance(inputs, Tensor):
        if inputs.is_meta and device.type != "meta":
            raise InputError(f"inputs hold a meta tensor {list(inputs.shape)}: pass one with data.")
        return inputs.to(device)
    if isinstance(inputs, Mapping):
        return {key: to_device(value, device) for key, value in inputs.items()}
    if isinstance(inputs, (tuple, list)) and not is_rows(inputs):
        moved = [to_device(value, device) for value in inputs]
        return moved if isinstance(inputs, list) else tuple(moved)
    return inputs


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the model's parameters; the CPU for a model without any.

    Raises
    ------
    InputError
        For no module, or one whose parameters hold no data.
    """
    parameter = next(check_module(model).parameters(), None)
    if parameter is not None and parameter.is_meta:
        raise InputError("model is on the meta device, without weights: load them first.")
    return torch.device("cpu") if parameter is None else parameter.device


def check_labels(labels: Any, *, name: str = "labels") -> Int[Tensor, " B"]:
    """Labels as an int64 tensor; class names by their codes.

    Raises
    ------
    LabelError
        If they are neither one whole number nor one name per item.
    """
    if labels is None:
        raise LabelError(f"{name} is None: pass the class of each item.")
    if not isinstance(labels, Tensor):
        labels = plain(labels)
        if (names := names_of(labels)) is not None:
            check_names(name, names)
            return class_codes(names)
    check_missing(name, labels)
    try:
        values = labels if isinstance(labels, Tensor) else as_array(name, labels)
        tensor = values if _is_plain(values) else as_tensor(name, values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise LabelError(
            f"{name} cannot be read as whole numbers ({error}), and are not class names either: "
            "pass one whole number or one string per item, none missing."
        ) from error
    if tensor.is_floating_point() or str(values.dtype).endswith("bool"):
        raise LabelError(f"{name} has dtype {values.dtype}: pass whole numbers (torch.int64).")
    if tensor.ndim != 1:
        raise LabelError(f"{name} has shape {tuple(tensor.shape)}: pass one class per item, [B].")
    return tensor.long()


def _is_plain(labels: Any) -> TypeGuard[Tensor]:
    """Return whether the labels are whole numbers in plain memory, at a glance."""
    usual = type(labels) is Tensor and labels.dtype == torch.int64
    return usual and labels.layout == torch.strided and not (labels.is_meta or labels.is_nested)


def _split(batch: Any, index: int) -> tuple[Inputs, Any]:
    """Inputs and labels of batch ``index``, which must have both."""
    pair = isinstance(batch, (tuple, list)) and len(batch) == 2
    inputs, labels = batch if pair else split_batch(batch)
    if pair or labels is not None:
        return inputs, labels
    raise LabelError(
        f"loader batch {index} is {shown(batch)}, so its labels are missing: "
        "yield (inputs, labels), where inputs is a tensor, a tuple or a dict; or a dict with an "
        f'entry "labels" or "label".{_how_to_split(batch)}'
    )


def _how_to_split(batch: Any) -> str:
    """What to write for a batch of another form."""
    if isinstance(batch, Mapping):
        rest = [name for name in batch if str(name) not in ("input_ids", "attention_mask")]
        last = rest[-1] if rest else "y"
        return f" If its labels are {last!r}: ({{'labels': b.pop({last!r}), **b}} for b in loader)."
    if isinstance(batch, (tuple, list)) and len(batch) > 2:
        n = len(batch)
        return (
            f" Of these {n} the first two, if they are inputs and labels: "
            "((x, y) for x, y, *_ in loader); the others as a tuple of inputs, if the last ones "
            "are the labels: ((b[:-1], b[-1]) for b in loader)."
        )
    return ""


def _read(
    loader: Iterable[Any],
    read: Callable[[int, Any], tuple[Read, int]],
    *,
    progress: bool,
    description: str,
    status: Callable[[], str] | None = None,
) -> Iterator[Read]:
    """Read each batch of a loader: ``read(index, batch)`` gives a value and its number of items."""
    try:
        batches = grouped_texts("loader", iter(loader))
    except TypeError as error:
        raise InputError(
            f"loader is a {type(loader).__name__}: pass an iterable of batches ({error})."
        ) from error
    index, start, bar = -1, time.perf_counter(), None
    if progress:
        bar = ItemBar(description, items_of(loader), operator.length_hint(loader) or None)
    with bar or nullcontext():
        for index, batch in enumerate(batches):
            value, n_items = read(index, batch)
            yield value
            if bar is not None:
                bar.advance(n_items, "" if status is None else status())
    _LOG.debug("%s: %d batches in %.1f s", description, index + 1, time.perf_counter() - start)
    if index < 0:
        raise EmptyLoaderError("the inputs yielded no batch: pass at least one item.")


def rows_of_batch(inputs: Inputs) -> int:
    """Items of a batch of inputs, for a bar; 1 for what has no length.

    Examples
    --------
    >>> x = torch.ones(5, 2)
    >>> rows_of_batch(x), rows_of_batch({"x": x}), rows_of_batch((x, x)), rows_of_batch(3)
    (5, 5, 5, 1)
    >>> rows_of_batch(torch.nested.nested_tensor([x]))
    1
    """
    if isinstance(inputs, (Mapping, tuple)):
        inputs = next(iter(inputs.values() if isinstance(inputs, Mapping) else inputs), None)
    try:
        return len(inputs)
    except (TypeError, RuntimeError):  # RuntimeError: a nested tensor
        return 1


def input_batches(
    loader: Iterable[Any], device: torch.device, *, progress: bool, description: str
) -> Iterator[Inputs]:
    """The inputs of each batch, on one device, whether or not labels come with them.

    Raises
    ------
    EmptyLoaderError
        For a loader without batches.
    InputError
        For a tensor or a mapping (one batch, where many are asked for), or nothing iterable.

    Examples
    --------
    >>> x = torch.ones(2, 3)
    >>> loader = [x, (x, torch.tensor([0, 1])), (x, x)]
    >>> [type(inputs).__name__ for inputs in input_batches(loader, x.device, progress=False,
    ...                                                    description="Reading")]
    ['Tensor', 'Tensor', 'tuple']
    """
    if isinstance(loader, (Tensor, Mapping)):
        raise InputError(f"loader is a {type(loader).__name__}: pass an iterable of batches.")

    def read(_: int, batch: Any) -> tuple[Inputs, int]:
        inputs = labels_of(batch)[0]
        return to_device(inputs, device), rows_of_batch(inputs)

    batches = as_batches(gathered_texts("loader", loader))
    yield from _read(batches, read, progress=progress, description=description)


def labels_of(batch: Any) -> tuple[Inputs, Any]:
    """Inputs and labels of a batch that may have none; labels are numbers or names, or None.

    A pair counts as ``(inputs, labels)`` if its second entry is one whole number per item, a list
    of names, or None; of a mapping the labels are its entry "labels" or "label".

    Raises
    ------
    LabelError
        For labels of which some are missing.

    Examples
    --------
    >>> labels_of(("a text", "another")), labels_of((["a text"], ["its class"]))
    ((('a text', 'another'), None), (['a text'], ['its class']))
    """
    inputs, labels = split_batch(batch)
    if isinstance(batch, Mapping):
        batch = inputs  # what else goes by that name, such as labels of tokens, is not an input
    if labels is None or (names := names_of(labels)) is not None:
        return inputs, None if labels is None else names
    if isinstance(labels, (tuple, list)) and not labels:
        return inputs, labels
    if have_gaps(labels):
        check_missing("labels", labels)
    try:
        return inputs, check_labels(labels)
    except LabelError:
        return batch, None


def labelled_batches(
    loader: Iterable[Any],
    device: torch.device,
    *,
    progress: bool,
    description: str,
    status: Callable[[], str] | None = None,
    names: dict[int, str] | None = None,
) -> Iterator[tuple[Inputs, Tensor]]:
    """The inputs and the labels [B] int64 of each batch, on one device, with a progress bar.

    ``status()`` is what the bar says after each batch. Labels that are missing or of the wrong
    kind raise ``LabelError``. Class names are given as their codes; ``names`` gets code -> name.

    Raises
    ------
    EmptyLoaderError
        For a loader without batches.
    InputError
        If the loader is not iterable.
    """
    known, n_read = {} if names is None else names, 0

    def read(index: int, batch: Any) -> tuple[tuple[Inputs, Tensor], int]:
        nonlocal n_read
        inputs, labels = _split(batch, index)
        with rows_before(n_read):
            checked = check_labels(labels, name=f"labels of loader batch {index}")
        n_read += len(checked)
        if known or not isinstance(labels, Tensor):
            note_names(known, labels, checked, first=index == 0)
        return (to_device(inputs, device), checked.to(device)), len(checked)

    yield from _read(loader, read, progress=progress, description=description, status=status)


def shown(value: Any) -> str:
    """Kind and shapes.

    Examples
    --------
    >>> import torch
    >>> shown({"tokens": torch.ones(2, 3, 4), "loss": None})
    'a dict (tokens [2, 3, 4], loss None)'
    """
    if isinstance(value, Tensor):
        return "a nested tensor" if value.is_nested else f"a tensor {list(value.shape)}"
    if isinstance(value, Mapping):
        parts = [f"{name} {_short(part)}" for name, part in value.items()]
    elif isinstance(value, (tuple, list)):
        parts = [_short(part) for part in value]
    else:  # an output object, such as a data class
        fields = getattr(value, "__dict__", {}).items()
        parts = [f"{name} {_short(part)}" for name, part in fields if isinstance(part, Tensor)]
    some = parts[:MOST_PARTS] + (["..."] if len(parts) > MOST_PARTS else [])
    return f"a {type(value).__name__}" + (f" ({', '.join(some)})" if some else "")


def _short(value: Any) -> str:
    if isinstance(value, (Tensor, np.ndarray)):
        return str(list(value.shape))
    return str(None) if value is None else f"a {type(value).__name__}"


MOST_PARTS = 6
"""Parts of an object that are shown."""

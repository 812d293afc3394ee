"""What tells one network from another, as far as what enters its head goes.

Its weights and buffers, how it is written down, the files of code that define its layers, where
and with what it runs; and its answer, to the last bit, to inputs that are the same each time. The
answer notices what none of the others does: code that a layer calls, another thread count, another
processor, a network that draws at random.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from laplace_metric._utils.files import digest
from laplace_metric._utils.version import __version__
from laplace_metric.models import Inputs, device_of, to_device
from laplace_metric.models.heads import LocatedHead, capture

TEXTS = ["a small red fox, seen from the left", "42 Ünïts; and a text of quite another length!"]
LONG = " ".join(str(number) for number in range(1, 300))
"""What a network of texts is asked; the long one shows where texts are cut off."""
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def network_identity(model: nn.Module, head: LocatedHead) -> str:
    """sha256 of all that is known of a network without running it.

    Examples
    --------
    >>> from laplace_metric.models.heads import find_head
    >>> model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    >>> x = torch.ones(2, 3)
    >>> one, two = (network_identity(m, find_head(m, x)) for m in (model, other))
    >>> one == two, one == network_identity(model, find_head(model, x))
    (False, True)
    """
    device = device_of(model)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    runs = f"{device} {name} {torch.get_num_threads()} {torch.__version__} {__version__}"
    tensors = dict(_tensors(model, head))
    return digest(f"{without_addresses(repr(model))} {list(tensors)} {runs} {_code_of(model)}"
                  f" {head.name} {head.normalized}", tensors.values())  # fmt: skip


def _tensors(model: nn.Module, head: LocatedHead) -> Iterator[tuple[str, Tensor]]:
    """Weights and buffers, those too that a ``state_dict`` leaves out."""
    for which, module in (("model", model), ("head", head.module)):
        everything = chain(module.named_parameters(), module.named_buffers())
        yield from ((f"{which} {name}", tensor) for name, tensor in everything)


def _code_of(model: nn.Module) -> str:
    """sha256 of the files that define the classes of its modules."""
    classes = {base for module in model.modules() for base in type(module).__mro__}
    names = sorted({base.__module__ for base in classes if issubclass(base, nn.Module)})
    sha256 = hashlib.sha256()
    for name in names:
        path = getattr(sys.modules.get(name), "__file__", None)
        sha256.update(name.encode())
        if path is not None and Path(path).is_file():
            sha256.update(Path(path).read_bytes())
    return sha256.hexdigest()


def without_addresses(text: str) -> str:
    """A representation without what differs between two runs.

    Examples
    --------
    >>> without_addresses("<function rgb at 0x7f2b1c>")
    '<function rgb>'
    """
    return ADDRESS.sub("", text)


def transform_identity(transform: Any, library: Any, *settings: Any) -> str | None:
    """What a library's transform of images does: versions, its settings, and one image by it.

    None if it makes no tensor of that image.
    """
    names = (library.__name__, "torchvision", "PIL")
    versions = [getattr(sys.modules.get(name), "__version__", "") for name in names]
    noise = torch.randint(256, (47, 61, 3), generator=torch.Generator().manual_seed(0))
    try:
        made = transform(Image.fromarray(noise.to(torch.uint8).numpy()))
        answer = digest("", [made])
    except Exception:  # the code of others may raise anything
        return None
    return without_addresses(f"{library.__name__} {versions} {settings} {transform!r} {answer}")


def network_answer(model: nn.Module, head: LocatedHead, like: Inputs) -> str | None:
    """sha256 of what enters and leaves the head for fixed inputs of the kind of ``like``.

    None where there is no such input, or the model fails on it, or answers differently each time.
    """
    for asked in _questions(like):
        inputs = to_device(asked, device_of(model))
        try:
            first, second = (capture(model, head, inputs) for _ in range(2))
        except Exception:  # the code of others may raise anything
            continue
        answers = [digest("", (seen.features, seen.raw, seen.output)) for seen in (first, second)]
        return answers[0] if answers[0] == answers[1] else None
    return None


def _questions(like: Inputs) -> list[Inputs]:
    """The next one is for a model that fails on the one before."""
    if isinstance(like, list) and isinstance(like[0], str):
        return [[*TEXTS, LONG], TEXTS]
    if not isinstance(like, Tensor) or not like.is_floating_point():
        return []
    noise = torch.randn(2, *like.shape[1:], generator=torch.Generator().manual_seed(0))
    return [noise.to(like.dtype)]

"""A hub that cannot be reached is asked once, and not again and again for a minute."""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from laplace_metric.errors import InputError

SWITCHES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
"""With one of these the libraries of the hub read what the machine has, and connect to nothing."""
SECONDS = 5.0


@contextmanager
def without_retries(name: str) -> Iterator[None]:
    """Load a model of the hub; where that cannot be reached, only from the machine's cache.

    Offline are what is imported within, and the library if it is there already.

    Parameters
    ----------
    name : str
        Name of the model; if it is a folder, the hub is not contacted.

    Raises
    ------
    InputError
        As it was raised within, with why the hub was not asked.
    """
    reason = None if Path(name).expanduser().is_dir() else why_unreachable()
    if reason is None:
        yield
        return
    before = {switch: os.environ.get(switch) for switch in SWITCHES}
    constants: Any = sys.modules.get("huggingface_hub.constants", SimpleNamespace())
    was = getattr(constants, SWITCHES[0], False)
    os.environ.update(dict.fromkeys(SWITCHES, "1"))
    setattr(constants, SWITCHES[0], True)
    try:
        yield
    except InputError as error:
        raise InputError(
            f"{error} {reason}, so that only models in the cache of this machine can be loaded. "
            "Download it where there is a network, and name its folder."
        ) from error
    finally:
        for switch, value in before.items():
            os.environ.pop(switch) if value is None else os.environ.update({switch: value})
        constants = sys.modules.get("huggingface_hub.constants", constants)
        setattr(constants, SWITCHES[0], was)


def why_unreachable() -> str | None:
    """Return the reason why the hub cannot be asked; None: it can."""
    for switch in SWITCHES:
        if os.environ.get(switch, "").upper() in ("1", "ON", "YES", "TRUE"):
            return f"{switch} is set"
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    try:
        urlopen(Request(endpoint, method="HEAD"), timeout=SECONDS).close()
    except HTTPError:  # it answers
        return None
    except (OSError, ValueError) as error:  # URLError among them, and a URL that is none
        reason = error.reason if isinstance(error, URLError) else error
        if isinstance(reason, ssl.SSLError):  # the library may know other certificates
            return None
        return f"{endpoint} cannot be reached ({reason})"
    return None

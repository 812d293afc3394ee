"""``--config``: the options of a run in a TOML file."""

from __future__ import annotations

import json
from argparse import Namespace
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from laplace_metric._utils import __version__
from laplace_metric._utils.names import SURROGATE
from laplace_metric.cli._words import PROGRAM
from laplace_metric.errors import FileFormatError, InputError, MissingPackageError

RUN = "run.toml"
"""The config of a run, which every output folder has."""
TRUST = "trust_recipe"
MODELS = ("model", "text_model")
"""Options that name code."""
NOT_SAVED = ("command", "config", TRUST, "json", "quiet", "overwrite")
"""Values of a namespace that concern one run alone, or are not options."""


# ``--config``: the options of a run in a TOML file.


def read_toml(path: Path, file: str) -> dict[str, Any]:
    for module in ("tomllib", "tomli"):
        with suppress(ModuleNotFoundError):
            toml: Any = import_module(module)
            break
    else:
        raise MissingPackageError("tomli", "--config before Python 3.11", "pip install tomli")
    try:
        return dict(toml.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise FileFormatError(f"{file} is not a TOML file: {error}.") from error


def run_text(options: Namespace) -> str:
    """Return the options of a run as TOML: all that it had, defaults too.

    Examples
    --------
    >>> print(run_text(Namespace(command="fit", data=Path("x"), seed=0)))
    # laplace-metric ... on the command line, where options given there win, and ...model.
    command = "fit"
    data = "x"
    seed = 0
    <BLANKLINE>
    """
    lines = [
        f"# {PROGRAM} {__version__}. To run it again from the same folder, give --config with this "
        "file",
        "# on the command line, where options given there win, and --trust-recipe for its model.",
        f"command = {json.dumps(options.command)}",
    ]
    for option, value in vars(options).items():
        if option not in NOT_SAVED and value is not False and value not in (None, []):
            written = json.dumps(value, ensure_ascii=False, default=str)  # TOML, but for one sign
            line = f"{option} = {written}".replace("\x7f", "\\u007f")
            if SURROGATE.search(line):  # TOML has no escape for bytes that are not UTF-8
                line = f"# Not UTF-8, give it on the command line: {line}"
            lines.append(line)
    return "\n".join(lines) + "\n"

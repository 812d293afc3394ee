"""How a saved posterior makes its model, which is code and runs only if it is trusted."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from laplace_metric import io as files
from laplace_metric.cli._models import FORM, code_of
from laplace_metric.cli._records import SavedRecord
from laplace_metric.cli._source import ARRAYS, ReadOptions, Source
from laplace_metric.errors import InputError
from laplace_metric.heads._located import APPEND
from laplace_metric.laplace._saved_posterior import POSTERIOR


@dataclass(frozen=True, kw_only=True)
class ModelRecipe(SavedRecord):
    """The model of a posterior, how its inputs are read, what it was fitted to: for later commands.

    Parameters
    ----------
    model : str or None
        Name of the model, as ``--model`` took it. None, the default: the data are embeddings.
    head : str or None
        Name of the head, as ``--head`` took it. None, the default: not given.
    kind : str or None
        Kind of the inputs: "images", "texts" or "arrays". None, the default: not known, for a
        posterior that was saved in Python.
    fingerprint : str
        Fingerprint of all of the data. Default: "", not known.
    """

    KIND = files.Kind("recipe", "a posterior of the command line", 2)

    model: str | None = None
    head: str | None = None
    kind: str | None = None
    fingerprint: str = ""

    def read_as(self, source: Source) -> ModelRecipe:
        """Return a recipe that reads other data as ``source`` was read, if that was not known."""
        if self.kind is not None:
            return self
        return replace(self, kind=source.kind, read_options=source.options)

    def left_out(self, source: Source, options: Namespace) -> tuple[Source, Source] | None:
        """Return the part of ``source`` that the fit left out, to calibrate and to evaluate with.

        None for other data, and for those of the fit where --allow-fitted is given.

        Raises
        ------
        InputError
            If the fit left nothing out.
        """
        if source.fingerprint != self.fingerprint:
            return None
        if self.holdout is not None:
            _, first, second = self.split(len(source))
            return source.take(first), source.take(second)
        if options.allow_fitted:
            return None
        raise InputError(
            f"{source.path} is what the posterior was fitted to, all of it: the posterior is surer "
            f"of these items than of new ones, so that nothing learnt or measured with them holds. "
            f"{REMEDY}"
        )


REMEDY = (
    "Give other data; or fit with --holdout 0.4, and index, evaluate and report follow its split; "
    "or --allow-fitted, to go on all the same."
)


def _recipe(saved: files.SavedFile, options: Namespace) -> ModelRecipe:
    """Read the recipe of ``fit`` in the file of the posterior, else use the options."""
    head = saved.part(POSTERIOR).content.get("head")
    if ModelRecipe.KIND.name in saved:
        return ModelRecipe.read(saved)
    if options.model is not None:
        return ModelRecipe(model=options.model)
    if not isinstance(head, dict) or head.get("name") != APPEND:
        raise InputError(
            f"{saved.path} was saved in Python, which does not keep the model: name it with "
            f"--model: {FORM}."
        )
    return ModelRecipe(kind=ARRAYS)


def distrust(path: Path, model: str, option: str) -> str:
    """Return the reason why a model that a file names is not run, and what to do."""
    return (
        f"{path} names the model {model!r}: {code_of(model)}. Whoever wrote the file chose that "
        f"code. Give --trust-recipe to run it, or name a model yourself with {option}."
    )


def read_options_of(options: Namespace) -> dict[str, Any]:
    """Return the fields of ``ReadOptions`` that the command line sets."""
    names = {field.name for field in fields(ReadOptions)} - {"transform"}
    return {name: value for name in sorted(names) if (value := getattr(options, name))}

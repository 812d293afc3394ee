"""The model card: what is in the folder, how to load it, what was measured, what numbers mean."""

from __future__ import annotations

import json
from collections.abc import Mapping
from numbers import Real
from typing import Any, Protocol

from laplace_metric._utils.display import in_words
from laplace_metric.errors import InputError


class NumberRows(Protocol):
    """What names its numbers, such as ``search.IndexReport``."""

    def rows(self) -> list[tuple[str, str]]:
        """What each number is, and the number, both in words."""


Numbers = NumberRows | Mapping[str, Any]
TAGS = ("metric-learning", "uncertainty", "laplace-approximation", "out-of-distribution-detection")
MEANINGS = """\
- `epistemic`: how far an input is from everything fitted, in standard deviations; about 0 for
  known ones.
- `ambiguity`: how divided the label of an input is, in nats.
- `uncertainty`: expected squared error of the embedding.

They say what the fit set and the last layer know. They do not know the noise of labels, nor the
errors that the layers before the last one share on every input. Choose thresholds on your own
data."""


def named_numbers(numbers: Numbers | None) -> dict[str, str]:
    """Names and values in words.

    Raises
    ------
    InputError
        For what is neither a report nor a mapping of numbers.

    Examples
    --------
    >>> named_numbers({"recall@1": 0.91234, "queries": 200})
    {'recall@1': '0.9123', 'queries': '200'}
    """
    if numbers is None:
        return {}
    if isinstance(numbers, Mapping):
        return {str(name): _in_words(name, value) for name, value in numbers.items()}
    if not callable(getattr(numbers, "rows", None)):
        raise InputError(
            f"numbers is a {type(numbers).__name__}: pass a mapping of name to number, or what "
            "index.evaluate gives."
        )
    return dict(numbers.rows())


def _in_words(name: Any, value: Any) -> str:
    if not isinstance(value, (Real, str)):
        raise InputError(f"numbers[{name!r}] is a {type(value).__name__}: pass a number.")
    return in_words(float(value)) if isinstance(value, Real) and value % 1 else str(value)


def model_card(name: str, content: Mapping[str, Any]) -> str:
    """Markdown with a header that hubs read; a license that was not given is "unknown".

    Parameters
    ----------
    name : str
        Its title.
    content : mapping
        Of ``config.json``.
    """
    header = {"license": content["license"] or "unknown", "library_name": "laplace-metric"}
    if content["base_model"]:
        header["base_model"] = content["base_model"]
    lines = [f"{key}: {json.dumps(value)}" for key, value in header.items()]
    front = "\n".join(["---", *lines, "tags:", *(f"- {tag}" for tag in TAGS), "---"])
    parts = [front, f"# {name}", _what(content), _how(name, content), "## Fit", _fit(content)]
    measured = content["numbers"]
    shown = _table(measured) if measured else "Nothing was measured when this was written."
    parts += ["## Measured", shown, "## What the numbers mean", MEANINGS]
    return "\n\n".join(parts) + "\n"


def _what(content: Mapping[str, Any]) -> str:
    of = "Embeddings" if content["model"] is None else f"A {content['model']}"
    last = "a layer after them" if content["model"] is None else "its last layer"
    return (
        f"{of} with a Laplace posterior over {last}: each embedding comes with its uncertainty. By "
        "[laplace-metric](https://pypi.org/project/laplace-metric/)."
    )


def _how(name: str, content: Mapping[str, Any]) -> str:
    model, comment = "", ""
    if content["model"] is not None:
        weights = "its weights are in this folder" if content["weights"] else "with its weights"
        model, comment = ", model", f"  # model: the {content['model']}, {weights}"
    return (
        "```python\nfrom laplace_metric import LaplaceEmbedder\n\n"
        f"embedder = LaplaceEmbedder.from_pretrained({name!r}{model}){comment}\n"
        "embedding = embedder(inputs)\n"
        "embedding.mean, embedding.epistemic, embedding.uncertainty\n```"
    )


def _fit(content: Mapping[str, Any]) -> str:
    kind = "directions" if content["directions"] else "vectors"
    facts = {
        "fitted to": f"{content['points']:,} points",
        "head": f"`{content['head']}`",
        "embeddings": f"{content['dimensions']} numbers, {kind}",
        **{key: in_words(value) for key, value in content["settings"].items() if value is not None},
        "written by": content["library"],
    }
    return _table(facts)


def _table(rows: Mapping[str, str]) -> str:
    lines = [f"| {_cell(name)} | {_cell(value)} |" for name, value in rows.items()]
    return "\n".join(["| | |", "| --- | --- |", *lines])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")

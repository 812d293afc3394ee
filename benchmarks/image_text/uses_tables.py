"""Tables of the uses, from ``image_text_uses.json`` and ``image_text_wordnet.json``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from benchmarks.image_text.tables import _cells as cells_of
from benchmarks.records import RESULTS, markdown, read_record, thousandths

RECORD, WORDNET_RECORD = "image_text_uses", "image_text_wordnet"


class Table(Protocol):
    """One of the tables, as Markdown."""

    def __call__(self, folder: Path = RESULTS) -> str:
        """From the records of a folder."""


WAYS = (
    "cosine, empty", "csd, empty", "cosine, inclusion", "cosine, inclusion and empty",
    "csd, inclusion and empty", "csd, inclusion of the caption", "cosine, nearest",
    "cosine, nearest and empty", "other photograph",
)  # fmt: skip
SCORES = ("precision", "recall", "any", "root")


def lines_of(
    rows: list[dict[str, Any]], columns: Mapping[str, tuple[str, ...]], first: str = "method"
) -> str:
    """A line a method that has any of these numbers; mean and deviation over seeds."""
    methods = list(dict.fromkeys(row["method"] for row in rows))
    lines = [[m, *(cells_of(rows, m, *path) for path in columns.values())] for m in methods]
    return markdown([first, *columns], [line for line in lines if any(line[1:])])


def way_lines(rows: list[dict[str, Any]], field: str) -> str:
    """A line for every method and way from [ROOT]."""
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        for way in WAYS:
            cells = [cells_of(rows, method, field, way, score) for score in SCORES]
            lines += [[method, way, *cells]] if any(cells) else []
    return markdown(["method", "ranking, [ROOT]", *SCORES], lines)


def ways_table(folder: Path = RESULTS) -> str:
    """HierarCaps from [ROOT] to photographs."""
    return way_lines(read_record(RECORD, folder)["rows"], "hierarcaps")


def text_ways_table(folder: Path = RESULTS) -> str:
    """HierarCaps from [ROOT] to the most specific captions."""
    record = read_record(WORDNET_RECORD, folder)
    features = {"method": "MiniLM, nothing trained", "hierarcaps": record["features"]}
    return way_lines([features, *record["rows"]], "hierarcaps")


def levels_table(folder: Path = RESULTS) -> str:
    """Rows of HierarCaps whose four levels are ordered."""
    columns = {
        "ordered by ambiguity": ("levels", "ordered"),
        "levels shuffled": ("levels", "shuffled"),
        "neighbours": ("levels", "neighbours"),
        "by cosine to the empty text": ("to the empty text", "ordered"),
        "spearman, ambiguity and words": ("levels", "words"),
    }
    content = read_record(RECORD, folder)
    rows = [{**row, "method": f"emoji: {row['method']}"} for row in content["rows"]]
    if (folder / f"{WORDNET_RECORD}.json").is_file():
        wordnet = read_record(WORDNET_RECORD, folder)
        more = [*wordnet["rows"], wordnet["regression"]]
        rows += [{**row, "method": f"WordNet: {row['method']}"} for row in more]
    names = ("ordered", "shuffled", "neighbours")
    words = ["number of words", *(thousandths(content["words"][k]) for k in names), "", ""]
    table = lines_of(rows, columns)
    return f"{table}\n| {' | '.join(words)} |"


def generality_table(folder: Path = RESULTS) -> str:
    """Spearman of a term's ambiguity and its descendants."""
    record = read_record(WORDNET_RECORD, folder)
    names = ("spearman", "with descendants", "shuffled", "without length")
    columns = {f"{part}: {name}": (part, name) for part in ("trained", "test") for name in names}
    return lines_of([*record["rows"], record["regression"]], columns)


def inclusion_table(folder: Path = RESULTS) -> str:
    """AUROC of glosses in their own hypernym, and in their own term."""
    names = [f"{s}, {o}" for o in ("random", "sibling") for s in ("inc", "H", "csd", "cosine")]
    columns = {name: ("test", name) for name in names}
    return lines_of(read_record(WORDNET_RECORD, folder)["rows"], columns)


def classes_table(name: str, folder: Path = RESULTS) -> str:
    """Zero-shot accuracy."""
    columns = (
        "one prompt", "all prompts", "all prompts, mean variance", "most certain half",
        "weights, 0 shots", "weights, 1 shots", "weights, 5 shots", "mean of 1 shots",
        "mean of 5 shots", "chance",
    )  # fmt: skip
    titles = {
        c.replace("0 shots", "no labels").replace("1 shots", "1 shot"): (name, c) for c in columns
    }
    return lines_of(read_record(RECORD, folder)["rows"], titles)


def bins_table(folder: Path = RESULTS) -> str:
    """Accuracy in tenths of the images by their ambiguity, and its rank correlation."""
    rows = read_record(RECORD, folder)["rows"]
    names = ("bins: spearman", "bin 1", "bin 5", "bin 10")
    parts = ("subgroups", "cifar10")
    columns = {f"{part}: {name}": (part, name) for part in parts for name in names}
    return lines_of(rows, columns)


def wrong_table(folder: Path = RESULTS) -> str:
    """AUROC of drawings with planted wrong keywords."""
    scores = ("match", "other_text", "other_image", "inclusion", "ambiguity")
    columns = {s.replace("_", " "): ("found", f"{s}, test") for s in scores}
    columns |= {f"{s.replace('_', ' ')}, no near-duplicates": ("found", f"{s}, by base, test")
                for s in scores[:3]}  # fmt: skip
    columns["match, in sample"] = ("found", "match, in sample, test")
    columns["other image, development"] = ("found", "other_image, development")
    return lines_of(read_record(RECORD, folder)["wrong"], columns)


TABLES: dict[str, Table] = {
    "image-text-ways": ways_table,
    "image-text-levels": levels_table,
    "image-text-subgroups": partial(classes_table, "subgroups"),
    "image-text-cifar10": partial(classes_table, "cifar10"),
    "image-text-bins": bins_table,
    "image-text-wrong": wrong_table,
}
WORDNET_TABLES: dict[str, Table] = {
    "image-text-terms": generality_table,
    "image-text-hypernyms": inclusion_table,
    "image-text-caption-ways": text_ways_table,
}

"""``laplace-metric search``: the neighbours of each query, and how sure each of them is."""

from __future__ import annotations

import io
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from laplace_metric._utils.files import write_atomically
from laplace_metric.cli._gallery import LoadedIndex, open_gallery
from laplace_metric.cli._output import reporter_of
from laplace_metric.cli._tables import WRITERS, Columns, rows_of, write_table
from laplace_metric.cli.sources import ARRAYS, IMAGES, Pixels, ReadOptions, Source, open_source
from laplace_metric.errors import InputError
from laplace_metric.search import SearchResult

SHOWN = 10
"""Queries in the terminal."""


def search(options: Namespace) -> None:
    """Search, show, write."""
    output, picture = options.output, options.picture
    if output is not None and output.suffix not in WRITERS:
        raise InputError(f"--output {output}: end it in {', '.join(WRITERS)}.")
    if picture is not None and picture.suffix != ".png":
        raise InputError(f"--picture {picture}: end it in .png.")
    voice = reporter_of(options, output, picture)
    gallery = open_gallery(options.index, options, voice)
    queries = gallery.opened.source(options.queries, options, voice)
    if picture is not None and queries.kind == ARRAYS:
        raise InputError("--picture needs images or texts: the index holds arrays.")
    loader = voice.watch("Searching", queries.inputs(options.batch_size))
    with voice.warnings():
        result = gallery.index.search(loader, options.k)
    columns = _columns(result, queries)
    if picture is not None:
        write_atomically(picture, _picture(result, gallery, queries))
    if output is not None:
        write_table(output, columns)
    voice.show(table(columns, options.k))
    if len(queries) > SHOWN:
        voice.say(f"the first {SHOWN} of {len(queries):,} queries; --output FILE has them all")
    for path in (output, picture):
        if path is not None:
            voice.say(f"wrote {path}")
    voice.numbers({"queries": len(queries), "k": options.k, "results": rows_of(columns)})


def table(columns: Columns, k: int) -> Table:
    """The first queries, a row a neighbour."""
    shown = Table(box=SIMPLE_HEAD)
    heads = ("query", "rank", "id", "label", "distance", "match", "")
    for head in heads:
        shown.add_column(head, justify="right" if head in ("rank", "distance", "match") else "left")
    for row in rows_of(columns)[: SHOWN * k]:
        match = row.get("match_probability")
        shown.add_row(
            escape(str(row["query"])) if row["rank"] == 1 else "",
            str(row["rank"]),
            escape(str(row["id"])),
            escape(str(row.get("label", ""))),
            f"{row['distance']:.3f} ± {row['distance_sd']:.3f}",
            "" if match is None else f"{match:.1%}",
            "unknown" if row["rank"] == 1 and row.get("unknown") else "",
        )
    return shown


def _columns(result: SearchResult, queries: Source) -> dict[str, list[Any]]:
    found = {name: values.tolist() for name, values in result.columns().items()}
    return {**found, "query": [queries.ids[row] for row in found["query"]]}


def _picture(result: SearchResult, gallery: LoadedIndex, queries: Source) -> bytes:
    reading = ReadOptions(**{**gallery.opened.recipe.reading, **gallery.origin.told})
    items = _shown(Path(gallery.origin.data), gallery.index.ids.tolist(), queries.kind, reading)
    asked: Sequence[Any] = _Pictures(queries.path, queries.ids)
    if queries.kind != IMAGES:
        asked = list(queries.read(range(len(queries))))
    file = io.BytesIO()
    result.figure(asked, items).savefig(file, format="png", dpi=110, facecolor="white")
    return file.getvalue()


def _shown(path: Path, ids: Sequence[str], kind: str, reading: ReadOptions) -> Sequence[Any]:
    """What to show of items: pictures that are read when they are shown, or texts."""
    if not path.exists():
        raise InputError(f"--picture needs {path}, which the index was built from: it is gone.")
    if kind == IMAGES:
        return _Pictures(path, ids)
    texts = open_source(path, reading)
    row = {name: number for number, name in enumerate(texts.ids)}
    return [texts.read([row[name]])[0] for name in ids]


@dataclass(frozen=True)
class _Pictures(Sequence[Any]):
    folder: Path
    ids: Sequence[str]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, row: Any) -> Any:
        return Pixels(self.folder, None, 3).one(self.ids[row])

"""``laplace-metric demo``: run the experiment, show the tables, write the report."""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from laplace_metric._utils.files import json_text, write_atomically
from laplace_metric.cli._output import require_outputs, warnings_as_notes
from laplace_metric.cli.demo._data import load_data
from laplace_metric.cli.demo._experiment import Outcome, Watch, run_experiment
from laplace_metric.cli.demo._recipes import RECIPES, DemoRecipe
from laplace_metric.cli.demo._summary import numbers_of, overview, report_of
from laplace_metric.cli.pages import Report, render, terminal_table
from laplace_metric.errors import InputError

COLUMNS = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())


@contextmanager
def progress_bars(console: Console) -> Iterator[Watch]:
    """A `Watch` with one bar for each description, which grows by every loader of that name."""
    with Progress(*COLUMNS, console=console) as progress:
        tasks: dict[str, TaskID] = {}

        def watch(description: str, loader: Iterable[Any], passes: int = 1) -> Iterable[Any]:
            if description not in tasks:
                tasks[description] = progress.add_task(description, total=0, start=False)
            task = tasks[description]
            more = len(loader) * passes  # type: ignore[arg-type]
            progress.update(task, total=(progress.tasks[task].total or 0) + more)
            return _Watched(loader, progress, task)

        yield watch


@dataclass(frozen=True)
class _Watched:
    """A loader that advances a bar with every batch."""

    loader: Iterable[Any]
    progress: Progress
    task: TaskID

    def __iter__(self) -> Iterator[Any]:
        self.progress.start_task(self.task)
        for batch in self.loader:
            yield batch
            self.progress.advance(self.task)


FIGURE_FORMATS = (".png", ".svg", ".pdf")


def demo(options: argparse.Namespace) -> None:
    """Do what the command line asks; nothing is written before all of it has succeeded."""
    console, recipe = Console(), _recipe(options)
    paths, sets = _outputs(options), load_data(recipe, options.data)
    with warnings_as_notes(console), progress_bars(console) as watch, _one_thread():
        outcome = run_experiment(recipe, sets, seed=options.seed, watch=watch)
    report = report_of(outcome)
    contents: list[str | bytes] = [render(report), json_text(numbers_of(outcome))]
    contents += [_overview(outcome, path.suffix[1:]) for path in paths[2:]]
    for path, content in zip(paths, contents, strict=True):
        write_atomically(path, content)
    _show(console, report, paths)


def _outputs(options: argparse.Namespace) -> list[Path]:
    """Report, JSON and, if asked for, figure: checked before the work begins."""
    paths = [options.output, options.json or options.output.with_suffix(".json")]
    if options.figure is not None:
        if options.figure.suffix not in FIGURE_FORMATS:
            raise InputError(f"--figure {options.figure}: end it in {', '.join(FIGURE_FORMATS)}.")
        paths.append(options.figure)
    require_outputs(paths)
    return paths


def _recipe(options: argparse.Namespace) -> DemoRecipe:
    """The data set's recipe with what the options change."""
    changes = {
        "epochs": options.epochs,
        "n_seeds": options.seeds,
        "n_train": options.limit,
        "n_queries": options.limit,
    }
    changes = {name: value for name, value in changes.items() if value is not None}
    return replace(RECIPES[options.dataset], **changes)


@contextmanager
def _one_thread() -> Iterator[None]:
    """For networks as small as the demo's, sharing the work takes longer than doing it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _overview(outcome: Outcome, file_format: str) -> bytes:
    buffer = io.BytesIO()
    overview(outcome).savefig(buffer, format=file_format, dpi=110, facecolor="white")
    return buffer.getvalue()


def _show(console: Console, report: Report, written: list[Path]) -> None:
    for section in report.sections:
        console.print(terminal_table(section))
    console.print(f"* best of the row. {report.spread}", style="dim", highlight=False)
    for path in written:
        console.print(f"wrote {path}", soft_wrap=True, highlight=False)

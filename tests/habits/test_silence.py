"""What the library says by itself: nothing but its bars, unless its logger is asked."""

from __future__ import annotations

import ast
import io
import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

import laplace_metric
from laplace_metric import LaplaceEmbedder
from laplace_metric.cli import main
from laplace_metric.plots import threshold_plot

PACKAGE = Path(laplace_metric.__file__).parent
pytestmark = pytest.mark.filterwarnings("ignore::laplace_metric.errors.LaplaceMetricWarning")
LOGGER = logging.getLogger("laplace_metric")


def test_only_the_command_line_prints():
    found = []
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE)
        if name.parts[0] in ("cli", "__main__.py"):
            continue
        calls = [
            node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
        ]
        found += [name for c in calls if isinstance(c.func, ast.Name) and c.func.id == "print"]
    assert not found


def test_without_a_bar_nothing_is_written(capfd, points, names):
    x, y = points
    embedder = LaplaceEmbedder.from_embeddings(x[:100], y[:100])
    index = embedder.index(x[100:200], names[100:200], progress=False)
    index.calibrate(x[200:300], names[200:300])
    index.evaluate(x[300:], names[300:])
    assert capfd.readouterr() == ("", "")


def test_it_is_silent_by_default():
    assert LOGGER.level == logging.NOTSET
    assert [type(handler) for handler in LOGGER.handlers] == [logging.NullHandler]


def test_it_says_what_a_user_waits_for(caplog, tmp_path, points, network):
    x, y = points
    with caplog.at_level("INFO", "laplace_metric"):
        embedder = LaplaceEmbedder(network).fit([(x[:100], y[:100])], progress=False)
        embedder.save(tmp_path / "saved")
        LaplaceEmbedder.load(tmp_path / "saved", network)
        index = embedder.index(x[100:200], y[100:200], progress=False)
        index.calibrate(x[200:300], y[200:300])
    said = [record.getMessage() for record in caplog.records]
    assert {record.levelname for record in caplog.records} == {"INFO"}
    for beginning, end in zip(
        ("fitted in", "saved to", "loaded from", "indexed in", "calibrated"),
        (
            "100 points",
            "100 points",
            "100 points",
            "100 items of 4 classes.",
            "100 cross-fitted queries",
        ),
        strict=True,
    ):
        (line,) = (line for line in said if line.startswith(beginning))
        assert end in line


def one_by_one(x, y):
    """Nobody knows how many batches there are."""
    yield from ((x[start : start + 100], y[start : start + 100]) for start in (0, 100))


GIVEN = {
    "rows": (lambda x, y: (x, y), "200/200", "items"),
    "a loader": (lambda x, y: (DataLoader(TensorDataset(x, y), 30), None), "200/200", "items"),
    "a loader that drops": (
        lambda x, y: (DataLoader(TensorDataset(x, y), 30, drop_last=True), None),
        *("180/180", "items"),
    ),
    "batches": (lambda x, y: ([(x[:80], y[:80]), (x[80:], y[80:])], None), "2/2", "batches"),
    "a generator": (lambda x, y: (one_by_one(x, y), None), "2", "batches"),
}


def last_line(capsys, title):
    lines = capsys.readouterr().err.replace("\r", "\n").splitlines()
    return [line for line in lines if title in line][-1]


@pytest.mark.parametrize("given", GIVEN)
def test_a_fit_counts_what_was_given(given, points, network, capsys):
    make, count, unit = GIVEN[given]
    data, labels = make(points[0][:200], points[1][:200])
    LaplaceEmbedder(network).fit(data, labels, progress=True)
    line = last_line(capsys, "Fitting")
    assert f" {count} " in line
    assert f" {unit}" in line.rsplit(",", 1)[1]


def test_the_command_line_counts_items_too(points, tmp_path, capsys):
    x, y = (values.numpy()[:240] for values in points)
    np.savez(tmp_path / "items.npz", embeddings=x, labels=y)
    items, posterior, index = (str(tmp_path / name) for name in ("items.npz", "p", "i"))
    assert main(["fit", items, "--output", posterior, "--holdout", "0.4"]) == 0
    assert " 144/144 " in last_line(capsys, "Fitting")
    assert main(["index", items, "--posterior", posterior, "--output", index]) == 0
    said = capsys.readouterr().err
    assert " 144/144 " in said
    assert " 48/48 " in said


A_KERNEL = """
import sys, types
shell = types.SimpleNamespace(config={"IPKernelApp": {}})
sys.modules["IPython"] = types.SimpleNamespace(get_ipython=lambda: shell)
sys.modules["ipykernel.zmqshell"] = types.ModuleType("ipykernel.zmqshell")
sys.modules["ipywidgets"] = None
"""
"""A notebook's kernel without ipywidgets, as ``tqdm`` tells one."""


def of_a_threshold():
    return threshold_plot([0.2, 0.9], [0, 1])


def of_neighbours():
    x, y = torch.rand(40, 4, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 4
    index = LaplaceEmbedder.from_embeddings(x, y).index(x, y, progress=False)
    return index.search(x[:2], k=2).figure(["a", "b"], ["item"] * 40)


@pytest.mark.parametrize("draw", [of_a_threshold, of_neighbours])
def test_a_figure_without_pyplot_shows_itself(draw):
    figure = draw()
    image = Image.open(io.BytesIO(figure._repr_png_()))
    assert image.size == tuple((100 * figure.get_size_inches() + 1e-6).astype(int))
    assert len(np.unique(np.asarray(image.convert("L")))) > 10  # something is drawn
    assert "pyplot" not in str(type(figure.canvas.manager))


def said_by(code: str) -> SimpleNamespace:
    return subprocess.run([sys.executable, "-c", A_KERNEL + code], capture_output=True, text=True)


def test_an_import_in_a_notebook_without_widgets_warns_of_nothing():
    assert "IProgress not found" in said_by("import tqdm.auto").stderr  # what it is about
    run = said_by("from laplace_metric.models import Sentences")
    assert (run.returncode, run.stderr) == (0, "")

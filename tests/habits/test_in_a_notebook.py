"""What a notebook shows of a figure, and that it has nothing to say about an import."""

from __future__ import annotations

import io
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from laplace_metric.plots import threshold_plot

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
    from laplace_metric import LaplaceEmbedder

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

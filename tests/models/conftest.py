"""``vision`` needs torchvision: it is collected where it is asked for by name (``test_vision``)."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    asked = any("vision" in Path(arg).parts for arg in config.args)
    return True if collection_path.name == "vision" and not asked else None

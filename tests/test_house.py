"""The architecture, held by tests: doors, names, what an import brings along.

Layers and circles are held by import-linter (``lint-imports``, configured in ``.importlinter``).
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import laplace_metric
from tests.conftest import LONGER, ROOT, SLOW
from tests.tiers import exists

PACKAGE = Path(laplace_metric.__file__).parent
HEAVY = ("scipy", "sklearn", "matplotlib", "rich", "jinja2", "pandas", "PIL", "faiss")
"""Not needed to fit and to embed."""


def test_every_exported_name_is_on_a_page():
    """In a text, in a tutorial, or in the reference, which shows whole modules.

    `io`, `inputs`, `cli` and `_utils` export to the other rooms, not to users.
    """
    pages = [
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").glob("*.ipynb"),
        ROOT / "README.md",
    ]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    shown = set(re.findall(r"\w+", text))
    for module in re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE):
        shown |= members(module)
    for path in PACKAGE.rglob("*.py"):
        if path.relative_to(PACKAGE).parts[0] not in ("io", "inputs", "cli", "_utils"):
            assert not set(exports(path)) - shown, path


def exports(path: Path) -> list[str]:
    """``__all__`` of a file."""
    return [
        name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign) and "__all__" in [ast.unparse(x) for x in node.targets]
        for name in ast.literal_eval(node.value)
    ]


def members(module: str) -> set[str]:
    """What the reference shows of a module: what it exports, else what it defines."""
    stem = ROOT / module.replace(".", "/")
    path = stem / "__init__.py" if stem.is_dir() else stem.with_suffix(".py")
    if not path.is_file():  # a class
        return set()
    nodes = ast.parse(path.read_text()).body
    defined = [node.name for node in nodes if isinstance(node, (ast.ClassDef, ast.FunctionDef))]
    return set(exports(path) or defined)


def test_private_files_stand_behind_one_public_door_a_room():
    # the page that a reader of the paper opens first; what imports scikit-learn
    public = {"curvature/by_class.py", "search/estimators.py"}
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        if path.parent == PACKAGE or name in public or name.startswith("_utils"):
            continue
        assert path.name.startswith("_"), f"{name} is neither a door nor private"
        assert (path.parent / "__init__.py").is_file()


def test_no_class_or_public_function_name_stands_for_two_things():
    places = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_"):
                places[node.name].add(str(path.relative_to(PACKAGE)))
    assert not {name: sorted(where) for name, where in places.items() if len(where) > 1}


@pytest.mark.parametrize("tier", [SLOW, LONGER], ids=lambda path: path.stem)
def test_every_function_of_a_tier_exists(tier):
    names = tier.read_text().split()
    assert len(set(names)) == len(names)
    assert not [name for name in names if not exists(name)]


def modules_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_an_embedder_costs_torch_and_little_more():
    brought = modules_after("from laplace_metric import LaplaceEmbedder")
    brought -= modules_after("import torch")
    assert not brought & set(HEAVY)
    assert not [name for name in brought if name.startswith("laplace_metric.distributed")]


def test_a_fit_in_one_process_imports_nothing_distributed():
    code = (
        "import torch\n"
        "from laplace_metric import LaplaceEmbedder\n"
        "LaplaceEmbedder(torch.nn.Linear(4, 2)).fit([(torch.randn(9, 4), torch.arange(9) % 3)])"
    )
    brought = modules_after(code)
    assert not [name for name in brought if name.startswith("laplace_metric.distributed")]


def test_calibration_does_without_torch():
    """A service that decides by a calibration has NumPy, SciPy and scikit-learn."""
    code = "import sys, laplace_metric.calibration; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"

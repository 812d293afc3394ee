"""Run the notebooks of ``examples``: ``python -m tests.notebooks [NAME ...]`` stores what they say.

Stored are the outputs alone: no times, no counts, no version of Python, so that a second run of
the same code gives the same file. Cells with the tag ``not-stored`` show photographs that may be
looked at but not given away; their pictures are left out.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
NOT_STORED = "not-stored"
SECONDS = 300
"""That a cell may take."""

QUIET = {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "PYTHONWARNINGS": "ignore:IProgress not found"}
"""Other libraries ask the network for nothing, and draw no bars."""


def names() -> list[str]:
    """Of all notebooks."""
    return sorted(path.stem for path in EXAMPLES.glob("*.ipynb"))


def read(name: str) -> Any:
    """A notebook as it is stored."""
    import nbformat

    return nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)


def executed(name: str) -> Any:
    """The notebook run anew, in an empty folder, with its outputs alone kept."""
    from nbclient import NotebookClient

    notebook = read(name)
    paths = [str(EXAMPLES), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, **QUIET, "PYTHONPATH": os.pathsep.join(paths)}
    env.pop("MPLBACKEND", None)  # as in a notebook that a person opens
    with tempfile.TemporaryDirectory() as folder:
        where = {"metadata": {"path": folder}}
        client = NotebookClient(notebook, timeout=SECONDS, resources=where)
        client.execute(env=env)
    for cell in notebook.cells:
        _clean(cell)
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def _clean(cell: Any) -> None:
    cell.metadata.pop("execution", None)
    if cell.cell_type != "code":
        return
    stored = NOT_STORED not in cell.metadata.get("tags", [])
    cell.execution_count = None
    kept = [x for x in cell.outputs if stored or "image/png" not in x.get("data", {})]
    cell.outputs = _joined(kept)
    for output in cell.outputs:
        if "execution_count" in output:
            output["execution_count"] = None


def _joined(outputs: list[Any]) -> list[Any]:
    """What was printed in several pieces as one: the pieces differ from run to run."""
    joined: list[Any] = []
    for output in outputs:
        last = joined[-1] if joined else {}
        if output.output_type == "stream" and last.get("name") == output.name:
            last.text += output.text
        else:
            joined.append(output)
    return joined


def texts(cell: Any) -> list[str]:
    """What a cell printed or showed, in words."""
    found = []
    for output in cell.get("outputs", []):
        if output.output_type == "stream":
            found.append(output.text)
        elif "image/png" in output.get("data", {}):
            found.append("a picture")
        elif output.output_type in ("execute_result", "display_data"):
            found.append(output.data.get("text/plain", ""))
    return found


def main(chosen: list[str]) -> None:
    """Run and store."""
    import nbformat

    for name in chosen or names():
        before = os.times().children_user + os.times().children_system
        notebook = executed(name)
        nbformat.write(notebook, EXAMPLES / f"{name}.ipynb")
        size = (EXAMPLES / f"{name}.ipynb").stat().st_size
        seconds = os.times().children_user + os.times().children_system - before
        print(f"{name}: {seconds:.0f} s of processor time, {size / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

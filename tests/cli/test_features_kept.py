"""What the network gave is kept for the next command, and nobody sees it but the clock."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from laplace_metric.cli import _feature_cache as kept
from laplace_metric.cli._feature_cache import CACHE
from tests.cli.workshop import trusting as main

NETWORK = """
import torch
from torch import nn

ROWS = []


class Counting(nn.Module):
    def __init__(self, sequence):
        super().__init__()
        self.sequence = sequence

    def forward(self, images):
        ROWS.append(len(images))
        return self.sequence(images{extra})


def embedder():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))
    model.load_state_dict(torch.load("weights.pt"))
    return Counting(model)


def transforming():
    from my_transform import transform

    return embedder(), transform
"""
TRANSFORM = """
import numpy as np
import torch


def transform(image):
    return torch.from_numpy(np.array(image.convert("L")))[None].float() / {scale}
"""
ASKED = 7
"""Rows of a command that are no items: one whether the model takes them, twice two, two to fit."""
FIT = ["fit", "photos", "--model", "counting:embedder", "--holdout", "0.4"]
COMMANDS = (
    FIT,
    ["index", "photos", "--posterior", "posterior"],
    ["evaluate", "index", "photos", "--json", "numbers.json"],
    ["search", "index", "photos", "--output", "found.csv"],
    ["embed", "photos", "--posterior", "posterior", "--output", "embedded.npz"],
)


def run(arguments: list[str]) -> int:
    """Rows that the network ran over."""
    sys.modules.pop("counting", None)
    sys.modules.pop("my_transform", None)
    assert main([*arguments, "--overwrite"]) == 0
    return sum(sys.modules["counting"].ROWS)


def write_network(extra: str = "") -> None:
    Path("counting.py").write_text(NETWORK.format(extra=extra))


@pytest.fixture
def counted(workplace, monkeypatch) -> Path:
    """A folder with photos (600 digits) and a network that counts what enters it."""
    write_network()
    for name in ("counting", "my_transform"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return workplace


def outputs() -> dict[str, bytes]:
    """Every file that the commands wrote but the settings of the run."""
    places = ("posterior", "index", "numbers.json", "found.csv", "embedded.npz")
    paths = [p for place in places for p in (Path(place), *Path(place).rglob("*")) if p.is_file()]
    return {str(p): p.read_bytes() for p in paths if p.name != "run.toml"}


def test_everything_comes_out_the_same_to_the_bit(counted):
    for arguments in COMMANDS:
        run([*arguments, "--no-cache", "--quiet"])
    assert not Path(CACHE).exists()
    expected = outputs()
    assert len(expected) > 10
    for _ in range(2):  # the second time everything comes from the files
        rows = [run([*arguments, "--quiet"]) for arguments in COMMANDS]
        assert outputs() == expected
    assert max(rows) <= ASKED


def test_each_item_enters_the_network_once(counted, capsys):
    rows = [run(arguments) for arguments in COMMANDS[:3]]
    assert [n for n in rows if n > ASKED] == rows
    assert 600 <= sum(rows) <= 600 + 3 * ASKED
    says = capsys.readouterr().err
    assert "note: features of 0 of 360 items came from " in says
    assert "note: features of 360 of 480 items came from " in says
    assert f"{CACHE}, 120 were computed" in says
    assert run(COMMANDS[2]) <= ASKED
    assert f"note: features of 120 of 120 items came from {counted / CACHE}\n" in (
        capsys.readouterr().err
    )
    assert run([*FIT, "--structure", "diag"]) <= ASKED


def test_cross_fitting_reads_the_features_of_the_fit(counted):
    assert run(FIT[:4]) <= 600 + ASKED
    assert run(["index", "photos", "--posterior", "posterior", "--cross-fit", "5"]) <= ASKED


def repainted(path: Path) -> None:
    """Another picture in as many bytes, which the fingerprint of a folder does not see."""
    before, size = np.array(Image.open(path)), path.stat().st_size
    for shift in range(1, 8):
        Image.fromarray(np.roll(before, shift, 1)).save(path)
        if path.stat().st_size <= size:
            break
    content = path.read_bytes()
    path.write_bytes(content + b"\0" * (size - len(content)))
    assert path.stat().st_size == size


def test_a_changed_image_is_computed_again_with_its_batch_alone(counted):
    embed = ["embed", "photos", "--posterior", "posterior", "--output", "embedded.npz", "--quiet"]
    run([*FIT, "--quiet"])
    run(embed)
    before = np.load("embedded.npz")["embeddings"]
    repainted(sorted(Path("photos/class 5").iterdir())[3])
    assert 64 <= run(embed) <= 64 + ASKED
    after = np.load("embedded.npz")["embeddings"]
    assert (before != after).any(1).sum() == 1
    run([*embed, "--no-cache"])
    assert np.array_equal(np.load("embedded.npz")["embeddings"], after)


@pytest.mark.parametrize("change", ["weights", "code", "size", "batch", "order"])
def test_what_decides_the_features_misses(change, counted):
    embed = ["embed", "photos", "--posterior", "posterior", "--output", "embedded.npz", "--quiet"]
    run([*FIT, "--head", "append", "--quiet"])
    assert run(embed) >= 600
    assert run(embed) <= ASKED
    if change == "weights":
        weights = torch.load("weights.pt")
        weights["1.weight"][0, 0] += 1e-6  # before the head: no other check sees it
        torch.save(weights, "weights.pt")
    elif change == "code":
        write_network(".clamp(max=1e6)")  # which changes no digit, and might
    elif change == "size":
        Path("wide").mkdir()
        for path in Path("photos").rglob("*.png"):
            (Path("wide") / path.parent.name).mkdir(exist_ok=True)
            Image.open(path).resize((9, 8)).save(Path("wide") / path.parent.name / path.name)
        embed[1:2] = ["wide", "--size", "8"]
    elif change == "batch":
        embed += ["--batch-size", "50"]
    else:
        Path("photos/class 0").rename("photos/class 9b")
    assert run(embed) >= 600


def test_code_that_a_layer_calls_is_noticed_by_what_it_answers(counted, monkeypatch):
    network = f"import helper\n{NETWORK.format(extra='')}"
    Path("counting.py").write_text(network.replace("(images)\n", "(helper.scaled(images))\n"))
    fit = [*FIT, "--head", "append", "--quiet"]
    rows = []
    for factor in (1, 1, 1.001):
        Path("helper.py").write_text(f"def scaled(x):\n    return {factor} * x\n")
        monkeypatch.delitem(sys.modules, "helper", raising=False)
        rows.append(run(fit))
    assert rows[0] == rows[2] > ASKED >= rows[1]


def test_a_transform_of_the_user_is_known_by_what_it_makes(counted):
    Path("my_transform.py").write_text(TRANSFORM.format(scale=255))
    fit = ["fit", "photos", "--model", "counting:transforming", "--quiet"]
    assert run(fit) >= 600
    assert run(fit) <= ASKED
    Path("my_transform.py").write_text(TRANSFORM.format(scale="255.0  # the same"))
    assert run(fit) <= ASKED
    Path("my_transform.py").write_text(TRANSFORM.format(scale=254))
    shutil.rmtree("__pycache__", ignore_errors=True)
    assert run(fit) >= 600


def test_a_damaged_file_is_named_and_computed_again(counted, capsys):
    run(FIT)
    expected, files = outputs(), sorted(Path(CACHE).rglob("*.safetensors"))
    contents = [path.read_bytes() for path in files]
    ways = [lambda c: c[:-1] + bytes([c[-1] ^ 1]), lambda c: c[: len(c) // 2], lambda c: b""]
    for number, (path, content) in enumerate(zip(files, contents, strict=True)):
        path.write_bytes(ways[number % 3](content))
    capsys.readouterr()
    assert run(FIT) >= 360
    says = capsys.readouterr().err
    for path in files:
        assert f"note: {counted / path} is damaged (" in says
    assert says.count("its items are computed again") == len(files) == 6
    assert outputs() == expected
    assert [path.read_bytes() for path in files] == contents


def test_where_it_cannot_be_written_it_is_not_kept_and_said_once(counted, capsys):
    Path(CACHE).write_text("a file in its place")
    run(FIT)
    says = capsys.readouterr().err
    assert says.count("features are not kept in") == 1
    assert "features of 0 of 360" in says


def test_it_lies_where_it_is_told_to(counted):
    run([*FIT, "--cache", "elsewhere", "--output", "deep/down/posterior", "--quiet"])
    assert not (counted / CACHE).exists()
    assert (counted / "elsewhere" / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f59")
    assert (counted / "elsewhere" / ".gitignore").read_text() == "*\n"
    index = ["index", "photos", "--posterior", "deep/down/posterior", "--quiet"]
    assert run([*index, "--cache", "elsewhere"]) < 360
    assert run(index) >= 480
    assert (counted / "deep" / "down" / CACHE).is_dir()


def test_an_image_that_changes_while_it_is_read_is_not_kept(counted, monkeypatch):
    run_network, moved = kept.capture, []

    def meanwhile(*arguments):
        seen = run_network(*arguments)
        if len(seen.features) > 2 and not moved:
            moved.append(1)
            repainted(sorted(Path("photos/class 5").iterdir())[3])
        return seen

    Path("photos/class 5").rename("five")
    shutil.rmtree("photos")
    Path("photos").mkdir()
    Path("five").rename("photos/class 5")
    shutil.copytree("photos/class 5", "photos/class 6")
    monkeypatch.setattr(kept, "capture", meanwhile)
    run(["fit", "photos", "--model", "counting:embedder", "--batch-size", "200", "--quiet"])
    assert moved
    assert not list(Path(CACHE).rglob("*.safetensors"))


@pytest.mark.parametrize("extra", [" + torch.randn(1)", " if images.min() >= 0 else None"])
def test_a_network_that_draws_or_refuses_noise_is_run_each_time(extra, counted, capsys):
    write_network(extra)
    for _ in range(2):
        assert run([*FIT, "--head", "append"]) >= 360
    assert not list(Path(CACHE).rglob("*.safetensors"))
    assert "features of 0 of 360" in capsys.readouterr().err


def test_two_commands_at_once(counted):
    for arguments in COMMANDS[:2]:
        run(arguments)
    shutil.rmtree(CACHE)
    search = ["search", "index", "photos", "--trust-recipe", "--output"]
    commands = [[sys.executable, "-m", "laplace_metric", *search, f"{n}.csv"] for n in "ab"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    both = [subprocess.Popen(c, env=environment, stderr=subprocess.PIPE) for c in commands]
    says = [process.communicate()[1].decode() for process in both]
    assert [process.returncode for process in both] == [0, 0], says
    assert "damaged" not in "".join(says)
    assert Path("a.csv").read_bytes() == Path("b.csv").read_bytes()
    assert len(list(Path(CACHE).rglob("*.safetensors"))) == 10
    assert not [p for p in Path(CACHE).rglob(".*") if p.name != ".gitignore"]
    assert run([*search[:3], "--output", "c.csv"]) <= ASKED
    assert Path("c.csv").read_bytes() == Path("a.csv").read_bytes()

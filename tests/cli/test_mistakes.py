"""A user's mistake is one line that says what to do, exit code 2, and nothing left behind."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest
import torch
from torch import nn

from tests.cli.workshop import FIT, MODEL, refused
from tests.cli.workshop import trusting as main

MISTAKEN = """
from torch import nn

model = nn.Linear(3, 2)


def number():
    return 3


def missing():
    return open("weights.pth")
"""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("fit photos -q", "unrecognized option -q"),
        ("serch", "Did you mean 'search'"),
        ("image-text ft", "Did you mean 'fit'?"),
        ("fit x --modle y", "unrecognized option --modle. Did you mean '--model'"),
        ("fit x --structure diga", "Did you mean 'diag'?"),
        ("fit photos --output q", "which need a --model: package.module:name"),
        ("fit photos --output q --model resnet50", "give package.module:name"),
        ("fit photos --output q --model hf:bert", "docs/models.md has these lines for timm"),
        ("fit photos --output q --model no_such:thing", "No module named 'no_such'"),
        ("fit photos --output q --model broken:nothing", "broken has no 'nothing'"),
        ("fit photos --output q --model broken:number", "gives a int: give an nn.Module"),
        ("fit photos --output q --model broken:missing", "such file or directory: 'weights.pth'"),
        ("fit photos --output q --model broken:model", "fails on inputs [1, 1, 8, 8]"),
        ("FIT --size 9", "fails on inputs [1, 1, 9, 9]"),
        ("FIT --device no", "--device no: PyTorch has no such device"),
        ("FIT --device gpu", "--device gpu: PyTorch has no such device. Give cuda"),
        ("fit photos --output q --model broken:missing --device GPU", "Give cuda"),
        ("FIT --device cuda:99", "--device cuda:99: "),
        ("FIT --device cuda:99", ". Leave --device out for the CPU."),
        ("FIT --head no", "--head no is not a layer"),
        ("FIT --json no/j", "the folder no does not"),
        ("FIT --size 0", "not a whole number from 1 to"),
        ("FIT --size 99999999", "from 1 to 8,192"),
        (f"FIT --json {'j' * 234}", "at most 233"),
        ("FIT --prior-precision -1", "'-1' is not a number above 0"),
        ("FIT --output broken.py", "broken.py exists: give --overwrite"),
        ("FIT --output empty", "empty is a folder. Give the name of a file"),
        ("FIT --output q/q", "the folder q does not exist"),
        ("fit nowhere MODEL --output q", "does not exist"),
        ("fit empty MODEL --output q", "holds no image"),
        ("fit one MODEL --output q", "at least 2"),
        ("fit 'photos/class 1' MODEL --output q", "no labels"),
        (
            "embed photos --posterior no --output o.npz",
            "no does not exist: give a file",
        ),
        ("embed photos --posterior empty --output o.npz", "empty is a folder: give the file"),
        ("embed photos --posterior no --output o.txt", "end it in .safetensors"),
        ("index photos --posterior no --holdout 2", "not a share between 0 and 1"),
        ("search no photos", "that laplace-metric index wrote"),
        ("search empty photos", "empty is a folder: give the file"),
        ("search no photos --output o.xls", "end it in .csv, .json"),
        ("search no photos --picture o.pdf", "end it in .png"),
        ("search no photos --by-class", "--by-class: give --precision P"),
        ("search no photos --coarser no.csv", "--coarser: give --precision P"),
        ("search no photos --coarser no.csv --precision .9", "no.csv is no table"),
        ("search no photos --by-class --coarser no.csv", "--by-class and --coarser: give one"),
        ("search no --text a --group-column g", "--text shows single queries"),
        ("search no photos --group-column g --picture p.png", "--picture shows single queries"),
        ("search no photos --group-column g", "--group-column g: photos is no table"),
        ("index photos --posterior no --group-column g", "--group-column g: photos is no table"),
        ("index photos --posterior no --group-column g --holdout .3", "shares its groups with"),
        ("index photos --posterior no --group-column g --cross-fit 0", "shares its groups with"),
        ("evaluate no photos", "that laplace-metric index wrote"),
        ("evaluate no photos --group-column g", "--group-column g: photos is no table"),
        ("report no photos --coarser no.csv", "no.csv is no table"),
        ("report no photos --output no/r.html", "the folder no does not exist"),
    ],
)
def test_one_line_and_nothing_left(words, says, workplace, capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    (workplace / "broken.py").write_text(MISTAKEN)
    (workplace / "empty").mkdir()
    (workplace / "one").mkdir()
    (workplace / "one" / "a").symlink_to(workplace / "photos" / "class 1")
    before = {p.name for p in workplace.iterdir()} | {"__pycache__"}
    words = (
        words.replace("FIT --output", "fit photos MODEL --output")
        .replace("FIT", "fit photos MODEL --output q")
        .replace("MODEL", " ".join(MODEL))
    )
    assert says in refused(shlex.split(words), capsys)
    assert {p.name for p in workplace.iterdir()} | {"__pycache__"} == before


def test_too_little_memory_is_one_line(monkeypatch, capsys):
    def demanding(options):
        raise MemoryError

    monkeypatch.setattr("laplace_metric.cli._fit.fit", demanding)
    assert main(["fit", "photos"]) == 2
    assert capsys.readouterr().err == (
        "laplace-metric: error: out of memory: give a smaller --batch-size, or a smaller --size of "
        "images.\n"
    )


def test_after_a_fit(workplace, capsys):
    build = ["index", "photos", "--posterior", "posterior"]
    embed = ["embed", "photos", "--posterior", "posterior", "--output", "o.npz"]
    assert main([*FIT, "--quiet"]) == 0
    for arguments, says in (
        (FIT, "posterior exists: give --overwrite"),
        (["index", "weights.npy", *build[2:]], "does not exist"),
        ([*build, "--calibrate", "photos"], "the items of the index themselves"),
        ([*build, "--calibrate", "photos", "--holdout", "0.3"], "give one of them"),
        ([*build, "--holdout", "0.3"], "photos is what the posterior was fitted to, all of it"),
        ([*build, "--holdout", "0.05", "--allow-fitted"], "pass at least 20"),
        (
            [*build, "--cross-fit", "601"],
            "600 items, 63 at most of one class, are too few for --cross-fit 601",
        ),
        ([*embed, "--size", "5"], "5, 5"),
    ):
        assert says in refused(arguments, capsys)
    assert not (workplace / "index").exists()
    assert main([*build, "--quiet"]) == 0
    assert "index exists" in refused(build, capsys)
    assert main([*build, "--overwrite"]) == 0
    weights = torch.load("weights.pt")
    (workplace / "weights.pt").unlink()  # a link to the file of all tests
    torch.save({name: tensor + 1 for name, tensor in weights.items()}, "weights.pt")
    assert "weights differ" in refused(embed, capsys)
    torch.save(nn.Linear(2, 2).state_dict(), "weights.pt")
    assert "my_model:embedder: embedder() fails" in refused(["search", "index", "photos"], capsys)


def test_folders_that_may_not_be_written_to(workplace, capsys, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)
    assert "may not be written to" in refused([*FIT, "--output", "q"], capsys)


def test_the_command_line_starts_without_torch():
    code = """
import sys
from laplace_metric.cli import main
for command in ("fit", "embed", "index", "search", "evaluate", "report", "demo"):
    try:
        main([command, "--help"])
    except SystemExit as stop:
        assert stop.code == 0
print(sorted({"torch", "numpy", "PIL", "matplotlib", "rich", "tqdm"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"

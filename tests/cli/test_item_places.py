"""Images of items are read where the command line says, not where a file of the index says."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from laplace_metric.cli._gallery import Origin, load_gallery
from laplace_metric.cli._options import parser_of
from laplace_metric.cli._reporter import Reporter
from laplace_metric.errors import InputError
from laplace_metric.io import SavedFile
from tests.cli.workshop import trusting as main
from tests.saved_files import put


@pytest.fixture
def foreign(workplace) -> Path:
    """``index``, whose gallery names the folder ``private``, which nothing else names."""
    for folder in workplace.glob("photos/class [2-9]"):
        shutil.rmtree(folder)
    fit = ["fit", "photos", "--model", "my_model:embedder", "--holdout", "0.5", "--quiet"]
    assert main(fit) == 0
    assert main(["index", "photos", "--posterior", "posterior", "--quiet"]) == 0
    shutil.copytree("photos", "private")
    origin = Origin.read(SavedFile(Path("index")))
    put(Path("index"), replace(origin, data=str(Path("private").resolve())).part())
    return workplace


def first_picture(*more: str) -> Image.Image:
    words = ["index", "photos", "--trust-recipe", *more]
    gallery = load_gallery(Path("index"), parser_of("search").parse(words), Reporter(quiet=True))
    return gallery.item_pictures()[0]


def test_no_image_is_read_where_only_the_index_says(foreign, capsys):
    with pytest.raises(InputError, match="give --data"):
        first_picture()
    search = ["search", "index", "photos", "--picture", "found.png", "--quiet"]
    assert main(search) == 2
    said = capsys.readouterr().err
    for part in ("index says that", f"the items lie in {foreign}/private", "--data", "photos"):
        assert part in said
    assert main(["report", "index", "photos", "--output", "without.html"]) == 0
    assert "named, not shown: " in capsys.readouterr().err
    assert first_picture("--data", "private").size == (8, 8)
    assert main([*search, "--data", "private"]) == 0
    told = ["report", "index", "photos", "--data", "private", "--output", "with.html", "--quiet"]
    assert main(told) == 0
    pages = [Path(f"{name}.html").read_text().count("data:image") for name in ("without", "with")]
    assert pages[0] < pages[1]
    assert main(["search", "index", "photos", "--data", "nowhere"]) == 2
    assert "nowhere does not exist" in capsys.readouterr().err


def test_a_link_that_leads_out_is_not_followed(foreign, capsys):
    shutil.move("private", "elsewhere")
    shutil.copytree("elsewhere", "private")
    for path in Path("private").glob("*/*.png"):
        path.unlink()
        path.symlink_to(Path("elsewhere", *path.parts[1:]).resolve())
    with pytest.raises(InputError, match="leads out of"):
        first_picture("--data", "private")
    search = ["search", "index", "photos", "--picture", "found.png", "--data", "private"]
    assert main([*search, "--quiet"]) == 2
    assert f"leads out of {foreign}/private" in capsys.readouterr().err
    assert main(["report", "index", "photos", "--data", "private", "--quiet"]) == 0
    assert first_picture("--data", "elsewhere").size == (8, 8)

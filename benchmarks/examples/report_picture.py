"""Make the picture of a report on the page of folders: clothes, two of them in a wrong folder.

``python -m benchmarks.examples.report_picture`` writes FashionMNIST images into folders by class,
and digits of MNIST as open-set queries; runs ``fit``, ``index`` and ``report``; and photographs the
page by Chromium, which must be installed (its name or path is ``--browser``).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageChops

from benchmarks.datasets import load
from benchmarks.examples.summary import DATA, command
from benchmarks.records import FIGURES
from laplace_metric.cli import main
from laplace_metric.datasets import ImageSet
from laplace_metric.errors import InputError

ITEMS, QUERIES, STRANGERS = 60, 40, 6
"""Images of a class."""
MOVED = 2
"""Trousers that lie among the bags."""
WIDTH, HEIGHT = 1_000, 3_000
"""Window in pixels; what is empty below the page is cut off."""
MARGIN = 16
KEPT = ("Which precision", "Which answers", "Which labels")
"""Beginnings of the titles of the sections that are shown."""


def write_folders(
    folder: Path, images: ImageSet, per_class: int, names: Sequence[str] | None = None
) -> None:
    """Write the first images of each class as PNG files, into a folder by class."""
    for code, name in enumerate(names or images.class_names):
        place = folder / name.replace("/", "-")
        place.mkdir(parents=True, exist_ok=True)
        for row in (images.labels == code).nonzero().flatten()[:per_class].tolist():
            pixels = images.pixels(slice(row, row + 1))[0, 0]
            scaled = (pixels - pixels.min()) / (pixels.max() - pixels.min()).clamp_min(1e-9)
            Image.fromarray((scaled * 255).round().byte().numpy()).save(place / f"{row:05}.png")


def shown_part(page: str) -> str:
    """Return a report with its verdict and the sections of ``KEPT`` alone.

    Examples
    --------
    >>> sections = "<section><h2>Which labels</h2></section><section><h2>More</h2></section>"
    >>> shown_part(f"<header></header>{sections}</body>")
    '<header></header><section><h2>Which labels</h2></section></body>'
    """
    start, end = page.index("</header>"), page.index("</body>")
    body = page[start:end]
    first = body.find("<section>")
    sections = re.findall(r"<section>.*?</section>", body, re.S)
    kept = [one for one in sections if re.search("<h2>(" + "|".join(KEPT) + ")", one)]
    return page[:start] + body[:first] + "".join(kept) + page[end:]


def cropped(image: Image.Image) -> Image.Image:
    """Return an image without the empty rows at its end, in 256 colours, rare ones among them."""
    image = image.convert("RGB")
    corner = image.getpixel((image.width - 1, image.height - 1))
    box = ImageChops.difference(image, Image.new("RGB", image.size, corner)).getbbox()
    if box is None:
        raise InputError("the browser's picture of the page is empty.")
    end = min(image.height, box[3] + MARGIN)
    few = Image.Quantize.MAXCOVERAGE  # the default merges the colours of the bar
    return image.crop((0, 0, image.width, end)).quantize(256, method=few)


def run(data: str | None = None, browser: str = "chromium", output: str | None = None) -> Path:
    """Write the picture; return its path."""
    program = shutil.which(browser)
    if program is None:
        raise InputError(f"{browser!r} is no program here: give --browser of a Chromium.")
    path = FIGURES / "report.png" if output is None else Path(output)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_folders(folder / "items", load("fashion-mnist", "train", data), ITEMS)
        write_folders(folder / "queries", load("fashion-mnist", "test", data), QUERIES)
        write_folders(folder / "digits", load("mnist", "test", data), STRANGERS)
        for moved in sorted((folder / "items" / "Trouser").iterdir())[:MOVED]:
            moved.rename(folder / "items" / "Bag" / moved.name)
        model, index = ["--model", "torch.nn:Flatten", "--quiet"], str(folder / "index")
        made = ["--output", str(folder / "posterior")]
        steps = (
            ["fit", str(folder / "items"), "--head", "append", *made],
            ["index", str(folder / "items"), "--posterior", made[1], "--output", index],
            ["report", index, str(folder / "queries"), "--open-set", str(folder / "digits"),
             "--data", str(folder / "items"), "--output", str(folder / "report.html")],
        )  # fmt: skip
        for step in steps:
            if main([*step, *model]):
                raise InputError(f"the step {step[0]!r} failed: see above.")
        page = folder / "part.html"
        page.write_text(shown_part((folder / "report.html").read_text()))
        shot = folder / "shot.png"
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        size = [f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={shot}"]
        subprocess.run([program, *flags, *size, page.as_uri()], check=True, capture_output=True)
        with Image.open(shot) as image:
            cropped(image).save(path, optimize=True)
    return path


if __name__ == "__main__":
    command(
        __doc__,
        run,
        data=DATA,
        browser={"default": "chromium", "help": "name or path of a Chromium"},
        output={"help": "file of the picture; default: that of the page"},
    )

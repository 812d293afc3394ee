"""Images by class on disk, and a small trained model that a file makes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from laplace_metric.cli import main

MODEL = ["--model", "my_model:embedder"]
FIT = ["fit", "photos", *MODEL]
FACTORY = """
import torch
from torch import nn


def embedder():
    model = nn.Sequential(nn.Flatten(), nn.Linear({pixels}, 64), nn.ReLU(), nn.Linear(64, 16))
    model.load_state_dict(torch.load("weights.pt"))
    return model
"""


def trusting(arguments: list[str]) -> int:
    """``main`` of a user who trusts the folders that the tests wrote a moment ago."""
    saved = arguments[0] in ("embed", "index", "search", "evaluate", "report")
    return main([*arguments, "--trust-recipe"] if saved else arguments)


def refused(arguments: list[str], capsys) -> str:
    """The one line that a command of such a user ends with, exit code 2."""
    capsys.readouterr()
    assert trusting([*arguments, "--quiet"]) == 2, arguments
    shown = capsys.readouterr()
    assert len(shown.err.strip().splitlines()) == 1, shown.err
    assert shown.out == ""
    return shown.err


def own_model() -> nn.Module:
    """The model of ``my_model.py``, made here."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))
    model.load_state_dict(torch.load("weights.pt"))
    return model


def write_vectors(name: str, n: int, seed: int = 0, names: list[str] | None = None) -> None:
    """Embeddings [n, 8] of four classes as NAME.npz, whose ids are "NAME.npz 0" and so on."""
    y = np.arange(n) % 4
    x = np.eye(8)[y] + 0.5 * np.random.default_rng(seed).normal(size=(n, 8))
    labels = y if names is None else np.array(names)[y]
    np.savez(f"{name}.npz", embeddings=x, labels=labels, ids=[f"{name}.npz {i}" for i in range(n)])


def write_images(folder: Path, images: np.ndarray, labels: np.ndarray) -> None:
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        place = folder / f"class {label}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{number:04d}.png")


def write_model(folder: Path, images: np.ndarray, labels: np.ndarray, name: str) -> None:
    """A classifier's features: trained on these images, saved with the file that makes it."""
    x = torch.from_numpy(images).float().flatten(1) / 255
    with torch.random.fork_rng():
        torch.manual_seed(0)
        body = nn.Sequential(nn.Flatten(), nn.Linear(x.shape[1], 64), nn.ReLU(), nn.Linear(64, 16))
        model = nn.Sequential(body, nn.Linear(16, 10))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(60):
        loss = nn.functional.cross_entropy(model(x), torch.from_numpy(labels).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(body.state_dict(), folder / "weights.pt")
    (folder / f"{name}.py").write_text(FACTORY.format(pixels=x.shape[1]))


LETTERS = """
import torch
from torch import nn


class Letters(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(26, 4)

    def forward(self, texts):
        counts = [[text.count(chr(97 + i)) for i in range(26)] for text in texts]
        return self.head(torch.tensor(counts, dtype=torch.float32))


model = Letters()
"""
"""A module whose ``model`` embeds texts by counting their letters."""

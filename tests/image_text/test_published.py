"""Published checkpoints: names and shapes, the same numbers as by hand, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm, linear, normalize

from laplace_metric.errors import FileFormatError, InputError, NotFittedError
from laplace_metric.image_text import ImageTextEmbedder, ImageTextPairs, load_prolip
from laplace_metric.image_text._published import Published

VIT_B_16 = {
    "embed_dim": 768,
    "init_logit_bias": -10,
    "vision_cfg": {
        "image_size": 224, "layers": 12, "width": 768, "patch_size": 16, "embed_unc": True,
    },
    "text_cfg": {
        "context_length": 64, "vocab_size": 32100, "width": 768, "heads": 12, "layers": 12,
        "embed_cls": True, "embed_unc": True, "norm_kwargs": {"eps": 1e-6},
    },
}  # fmt: skip
SMALL = {
    "embed_dim": 12,
    "vision_cfg": {"image_size": 8, "patch_size": 4, "layers": 2, "width": 16, "head_width": 8,
                   "mlp_ratio": 3.0, "embed_unc": True},
    "text_cfg": {"context_length": 5, "vocab_size": 30, "width": 12, "heads": 3, "layers": 2,
                 "norm_kwargs": {"eps": 1e-6}, "embed_unc": True},
}  # fmt: skip
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


def published_shapes(config: dict) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        model = Published(config)
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def weights(config: dict = SMALL) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(0)
    shapes = published_shapes(config)
    return {name: 0.3 * torch.randn(shape, generator=g) for name, shape in shapes.items()}


def written(folder: Path, tensors: dict[str, Tensor], config: object = SMALL) -> Path:
    folder.mkdir(exist_ok=True)
    save_file({k: t.contiguous() for k, t in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def images() -> Tensor:
    return torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def numbers() -> Tensor:
    return torch.randint(30, (6, 5), generator=torch.Generator().manual_seed(2))


def test_names_and_shapes_are_those_of_vit_b_16():
    """As the published code makes them for its ViT-B-16-ProLIP."""
    shapes = published_shapes(VIT_B_16)
    assert len(shapes) == 2 + 2 * 12 * 12 + 11 + 10
    block = "transformer.resblocks.11."
    some = {
        "logit_scale": (),
        "visual.conv1.weight": (768, 3, 16, 16),
        "visual.positional_embedding": (198, 768),
        f"visual.{block}attn.in_proj_weight": (2304, 768),
        f"visual.{block}mlp.c_fc.weight": (3072, 768),
        "visual.proj": (768, 768),
        "text.token_embedding.weight": (32100, 768),
        "text.cls_emb": (768,),
        "text.positional_embedding": (66, 768),
        "text.text_uncertainty_projection.weight": (768, 768),
    }
    assert {name: shapes[name] for name in some} == some


class ByHand:
    """What the published code computes, by its names, in float64."""

    def __init__(self, tensors: dict[str, Tensor], *, quick: bool = False) -> None:
        self.t = {name: tensor.double() for name, tensor in tensors.items()}
        self.quick = quick

    def norm(self, x: Tensor, name: str, eps: float) -> Tensor:
        w, b = self.t[f"{name}.weight"], self.t[f"{name}.bias"]
        return layer_norm(x, x.shape[-1:], w, b, eps)

    def linear(self, x: Tensor, name: str) -> Tensor:
        return linear(x, self.t[f"{name}.weight"], self.t[f"{name}.bias"])

    def block(self, x: Tensor, name: str, heads: int, eps: float) -> Tensor:
        y = self.norm(x, f"{name}.ln_1", eps)
        qkv = linear(y, self.t[f"{name}.attn.in_proj_weight"], self.t[f"{name}.attn.in_proj_bias"])
        b, n, w = x.shape
        q, k, v = (part.view(b, n, heads, w // heads) for part in qkv.chunk(3, -1))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / (w // heads) ** 0.5
        seen = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).reshape(b, n, w)
        x = x + self.linear(seen, f"{name}.attn.out_proj")
        y = self.linear(self.norm(x, f"{name}.ln_2", eps), f"{name}.mlp.c_fc")
        y = y * torch.sigmoid(1.702 * y) if self.quick else gelu(y)
        return x + self.linear(y, f"{name}.mlp.c_proj")

    def image(self, images: Tensor) -> tuple[Tensor, Tensor]:
        t = self.t
        x = images.double() - torch.tensor(MEAN).double()[:, None, None]
        x = x / torch.tensor(STD).double()[:, None, None]
        p = [x[:, :, i : i + 4, j : j + 4] for i in (0, 4) for j in (0, 4)]
        seen = torch.stack(
            [torch.einsum("bcij,wcij->bw", q, t["visual.conv1.weight"]) for q in p], 1
        )
        tokens = [t[f"visual.{k}_embedding"].expand(len(x), 1, -1) for k in ("class", "unc")]
        x = torch.cat([*tokens, seen], 1) + t["visual.positional_embedding"]
        x = self.norm(x, "visual.ln_pre", 1e-5)
        for i in range(2):
            x = self.block(x, f"visual.transformer.resblocks.{i}", 2, 1e-5)
        x = self.norm(x, "visual.ln_post", 1e-5)
        mean = self.norm(x[:, 0], "visual.ln_post", 1e-5) @ t["visual.proj"]
        return normalize(mean, dim=-1), self.linear(x[:, 1], "visual.uncertainty_proj")

    def text(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        t = self.t
        tokens = [t[f"text.{k}_emb"].expand(len(numbers), 1, -1) for k in ("unc", "cls")]
        x = torch.cat([t["text.token_embedding.weight"][numbers], *tokens], 1)
        x = x + t["text.positional_embedding"]
        for i in range(2):
            x = self.block(x, f"text.transformer.resblocks.{i}", 3, 1e-6)
        mean = self.linear(self.norm(x[:, -1], "text.ln_final", 1e-6), "text.text_projection")
        return normalize(mean, dim=-1), self.linear(mean, "text.text_uncertainty_projection")


@pytest.mark.parametrize("quick", [False, True])
def test_numbers_are_those_of_the_published_code(quick, images, numbers, tmp_path):
    tensors = weights()
    config = {**SMALL, "quick_gelu": quick}
    embedder, hand = load_prolip(written(tmp_path, tensors, config)), ByHand(tensors, quick=quick)
    image, text = embedder.embed_image(images), embedder.embed_text(numbers)
    for mine, oracle in ((image, hand.image(images)), (text, hand.text(numbers))):
        torch.testing.assert_close(mine.mean.double(), oracle[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(mine.variance.double(), oracle[1].exp(), rtol=1e-4, atol=1e-5)
    assert not any(p.requires_grad for p in nn.ModuleList(embedder.towers).parameters())
    (mu, log_v), (nu, log_w) = hand.image(images), hand.text(numbers)
    traces = log_v.exp().sum(1)[:, None] + log_w.exp().sum(1)
    logits = hand.t["logit_scale"].exp() * (mu @ nu.mT - traces / 2) + hand.t["logit_bias"]
    torch.testing.assert_close(embedder.match_logit(image, text).double(), logits, rtol=1e-4,
                               atol=1e-4)  # fmt: skip


def test_texts_go_through_the_tokenizer(numbers, tmp_path):
    table = {f"text {i}": row for i, row in enumerate(numbers)}
    folder = written(tmp_path, weights())
    embedder = load_prolip(folder, lambda texts: torch.stack([table[text] for text in texts]))
    as_numbers = load_prolip(folder).embed_text(numbers)
    torch.testing.assert_close(embedder.embed_text(list(table)).mean, as_numbers.mean)


def test_the_posterior_comes_with_pairs_of_ones_own(images, numbers, tmp_path):
    embedder = load_prolip(written(tmp_path / "a", weights()), prior_precision=3.0)
    with pytest.raises(NotFittedError):
        _ = embedder.embed_image(images).weight_variance
    pairs = ImageTextPairs(images, numbers, torch.arange(6).repeat(2, 1).T)
    before = embedder.embed_image(images)
    embedder.fit_posterior(pairs)
    after = embedder.embed_image(images)
    assert bool((before.mean == after.mean).all())
    assert bool((after.weight_variance > 0).all())
    assert embedder.prior_precision == 3.0
    embedder.save(tmp_path / "b")
    towers = embedder.towers
    again = ImageTextEmbedder.load(tmp_path / "b", towers.image, towers.text)
    torch.testing.assert_close(again.embed_image(images).weight_variance, after.weight_variance)
    with pytest.raises(InputError, match="pass ImageTextPairs"):
        embedder.fit_posterior([(0, 0)])
    with pytest.raises(NotFittedError):
        ImageTextEmbedder(towers.image, towers.text, tokens="uncertainty").fit_posterior(pairs)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(FileFormatError, match=r"last\.pt.*safetensors.*other formats"):
        load_prolip(tmp_path / "last.pt")
    with pytest.raises(FileFormatError, match=r"cannot be read.*config\.json"):
        load_prolip(tmp_path)
    folder = written(tmp_path / "a", weights())
    (folder / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(FileFormatError, match="cannot be read"):
        load_prolip(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text.unc_emb": None}, r"(?s)Missing key.*text\.unc_emb"),
        ({"visual.attn_pool.weight": torch.zeros(2)}, r"(?s)Unexpected key.*attn_pool"),
        ({"visual.proj": torch.zeros(16, 13)}, r"(?s)size mismatch for visual\.proj"),
    ],
)
def test_tensors_of_other_names_and_shapes_are_named(changes, message, tmp_path):
    tensors = {name: t for name, t in {**weights(), **changes}.items() if t is not None}
    with pytest.raises(FileFormatError, match=message):
        load_prolip(written(tmp_path, tensors))


def test_other_configs_are_refused(tmp_path):
    folder = written(tmp_path, weights())
    for config, match in (
        ({**SMALL, "embed_dim": 16}, "width 12 and embed_dim 16"),
        ({"embed_dim": 12}, "not of ProLIP: KeyError"),
        ({**SMALL, "vision_cfg": {**SMALL["vision_cfg"], "embed_unc": False}}, "without"),
        ({**SMALL, "vision_cfg": {**SMALL["vision_cfg"], "layers": 0}}, "layers=0"),
    ):
        with pytest.raises(InputError, match=match):
            load_prolip(written(folder, weights(), config))


def test_bad_inputs_are_named(images, numbers, tmp_path):
    embedder = load_prolip(written(tmp_path, weights()))
    with pytest.raises(InputError, match="texts.*tokenizer"):
        embedder.embed_text(["a dog"])
    with pytest.raises(InputError, match=r"\[6, 4\]: pass.*\[B, 5\], padded"):
        embedder.embed_text(numbers[:, :4])
    with pytest.raises(InputError, match="0 to 30.*vocabulary has 30"):
        embedder.embed_text(torch.tensor([[0, 1, 2, 3, 30]]))
    with pytest.raises(InputError, match=r"images lie in .* not normalised"):
        embedder.embed_image(images * 4 - 2)
    with pytest.raises(InputError, match=r"pass.*\[B, 3, 8, 8\]"):
        embedder.embed_image(torch.zeros(1, 3, 16, 16))


def test_a_file_and_its_folder_are_the_same_and_half_precision_becomes_float(images, tmp_path):
    tensors = {name: tensor.half() for name, tensor in weights().items()}
    folder = written(tmp_path, tensors)
    first, second = (load_prolip(p) for p in (folder, folder / "model.safetensors"))
    mean = first.embed_image(images).mean
    assert mean.dtype == torch.float32
    assert bool((mean == second.embed_image(images).mean).all())

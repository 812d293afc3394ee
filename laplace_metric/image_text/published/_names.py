"""Names and shapes of the tensors of published checkpoints, and what they are called here."""

from __future__ import annotations

from torch import Tensor

from laplace_metric.errors import FileFormatError
from laplace_metric.image_text.published._config import PublishedConfig, PublishedTower

Shapes = dict[str, tuple[int, ...]]
BLOCKS = "transformer.resblocks."
LAYER = {
    "ln_1": "norm1",
    "attn.in_proj_": "self_attn.in_proj_",
    "attn.out_proj": "self_attn.out_proj",
    "ln_2": "norm2",
    "mlp.c_fc": "linear1",
    "mlp.c_proj": "linear2",
}
"""Parts of a layer: published, and of ``torch.nn.TransformerEncoderLayer``."""
PARTS = {
    "conv1": "patches",
    "token_embedding": "embedding",
    "positional_embedding": "positions",
    "ln_pre": "first_norm",
    "ln_post": "last_norm",
    "ln_final": "last_norm",
    "text_projection": "projection",
}


def published_shapes(config: PublishedConfig) -> Shapes:
    """Every tensor of a checkpoint, by its published name."""
    w, d = config.image.width, config.dim
    image = {
        "conv1.weight": (w, 3, config.patch, config.patch),
        "class_embedding": (w,),
        "unc_embedding": (w,),
        "positional_embedding": (config.n_patches + 2, w),
        **_norm("ln_pre", w),
        **_blocks(config.image),
        **_norm("ln_post", w),
        "proj": (w, d),
        **_linear("uncertainty_proj", w, d),
    }
    w = config.text.width
    text = {
        "token_embedding.weight": (config.vocabulary, w),
        "cls_emb": (w,),
        "unc_emb": (w,),
        "positional_embedding": (config.length + 2, w),
        **_blocks(config.text),
        **_norm("ln_final", w),
        **_linear("text_projection", w, d),
        **_linear("text_uncertainty_projection", w, d),
    }
    shapes: Shapes = {"logit_scale": (), "logit_bias": ()}
    shapes |= {f"visual.{name}": shape for name, shape in image.items()}
    return shapes | {f"text.{name}": shape for name, shape in text.items()}


def _blocks(tower: PublishedTower) -> Shapes:
    w = tower.width
    one = {
        **_norm("ln_1", w),
        "attn.in_proj_weight": (3 * w, w),
        "attn.in_proj_bias": (3 * w,),
        **_linear("attn.out_proj", w, w),
        **_norm("ln_2", w),
        **_linear("mlp.c_fc", w, tower.feedforward),
        **_linear("mlp.c_proj", tower.feedforward, w),
    }
    return {f"{BLOCKS}{i}.{name}": s for i in range(tower.depth) for name, s in one.items()}


def _norm(name: str, width: int) -> Shapes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _linear(name: str, inputs: int, outputs: int) -> Shapes:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def check_tensors(where: str, tensors: dict[str, Tensor], config: PublishedConfig) -> None:
    """Check names and shapes.

    Raises
    ------
    FileFormatError
        For tensors that are missing, unknown or of another shape; it names the first.
    """
    wanted = published_shapes(config)
    if missing := [name for name in wanted if name not in tensors]:
        raise FileFormatError(
            f"{where} lacks {len(missing)} of {len(wanted)} tensors, the first is {missing[0]!r}: "
            "is it a checkpoint of ProLIP, and config.json its own?"
        )
    if unknown := [name for name in tensors if name not in wanted]:
        raise FileFormatError(
            f"{where} has {len(unknown)} tensors that ProLIP has not, the first is {unknown[0]!r}."
        )
    for name, shape in wanted.items():
        if tuple(tensors[name].shape) != shape:
            raise FileFormatError(
                f"{where}: {name!r} has shape {list(tensors[name].shape)}, and config.json says "
                f"{list(shape)}."
            )
        if not tensors[name].is_floating_point():
            raise FileFormatError(f"{where}: {name!r} is {tensors[name].dtype}, no weights.")


def renamed(name: str) -> str:
    """A tensor of a tower, as it is called here.

    Examples
    --------
    >>> renamed("transformer.resblocks.3.mlp.c_fc.bias"), renamed("ln_post.weight")
    ('layers.layers.3.linear1.bias', 'last_norm.weight')
    """
    if name.startswith(BLOCKS):
        number, part = name.removeprefix(BLOCKS).split(".", 1)
        own = next(part.replace(a, b, 1) for a, b in LAYER.items() if part.startswith(a))
        return f"layers.layers.{number}.{own}"
    first, dot, rest = name.partition(".")
    return f"{PARTS.get(first, first)}{dot}{rest}"

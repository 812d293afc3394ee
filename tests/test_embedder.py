from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, TensorDataset

from laplace_metric import LaplaceEmbedder
from laplace_metric.curvature import ContrastiveLoss
from laplace_metric.curvature._mined_pairs import batch_curvature
from laplace_metric.errors import (
    DegenerateCurvatureWarning,
    EmptyLoaderError,
    InputError,
    LabelError,
    LimitWarning,
    NonFiniteError,
    NotFittedError,
    PriorAtEdgeWarning,
    UnknownNameError,
)
from laplace_metric.heads._linear import LinearJacobian
from laplace_metric.laplace import Settings, _predicted
from laplace_metric.models import Precomputed
from tests.contrastive.oracle import all_pair_weights, dense_ggn


class Normalized(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x):
        return nn.functional.normalize(self.body(x), dim=-1)


def fit(model, loader, structure="diag", positivity="clip", **settings):
    embedder = LaplaceEmbedder(model, structure=structure, positivity=positivity, **settings)
    return embedder.fit(loader, progress=False)


@pytest.mark.parametrize("hessian", ["full", "positives", "fixed"])
@pytest.mark.parametrize(
    ("distance", "normalized"), [("euclidean", 0), ("euclidean", 1), ("arccos", 1)]
)
def test_hessian_is_the_clipped_oracle_in_parameter_order(
    model, data, distance, normalized, hessian
):
    x, y = data[0][:12], data[1][:12]
    net = Normalized(model) if normalized else model
    embedder = fit(
        net.double(),
        [(x[:5].double(), y[:5]), (x[5:].double(), y[5:])],
        distance=distance,
        hessian=hessian,
        margin=0.3,
    )
    with torch.no_grad():
        h = model[:2](x.double())
        z = model(x.double())
    f = nn.functional.normalize(z, dim=-1) if normalized else z
    targets = all_pair_weights(y, f, 0.3)
    if hessian == "positives":
        targets = targets.clamp_min(0)
    oracle = dense_ggn(
        h,
        model[2],
        targets,
        distance=distance,
        normalized=bool(normalized),
        cross=hessian != "fixed",
    )
    expected = oracle.diagonal().clamp_min(0)
    torch.testing.assert_close(embedder.hessian_.diagonal(), expected)
    assert torch.equal(embedder.hessian_.to_dense(), embedder.hessian_.diagonal().diag())
    negative = oracle.diagonal().clamp_max(0).abs().sum() / oracle.diagonal().abs().sum()
    assert embedder.hessian_.negative_fraction == pytest.approx(float(negative), abs=1e-12)
    assert torch.equal(embedder.posterior_.mean, parameters_to_vector(model[2].parameters()))


def test_any_loader_any_batches_and_a_spill_give_one_posterior(model, data):
    x, y = data
    expected = fit(model, [(x, y)]).hessian_.eigenvalues
    plain = LaplaceEmbedder(model, structure="diag", positivity="clip")
    same = (
        plain.fit([(x, y)], progress=False, memory_bytes=0),
        fit(model, [(x, y.numpy())]),
        fit(model, iter([(x, y.tolist())])),
    )
    assert all(torch.equal(one.hessian_.eigenvalues, expected) for one in same)
    for loader in (
        [(x[:1], y[:1]), (x[1:40], y[1:40]), (x[40:], y[40:])],
        DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True),
    ):
        other = fit(model, loader).hessian_.eigenvalues
        torch.testing.assert_close(other, expected, rtol=1e-4, atol=1e-8)


def test_pytorch_metric_learning_miners(model, data):
    from pytorch_metric_learning import miners

    x, y = data
    for miner in (miners.MultiSimilarityMiner(), miners.TripletMarginMiner(margin=0.5)):
        embedder = fit(model, [(x, y)], pairs=miner, hessian="full")
        with torch.no_grad():
            indices = miner(model(x), y)
            contrast = ContrastiveLoss.of("arccos", "full", normalized=False)
            head = LinearJacobian.of(model[2])
            value = batch_curvature(model[:2](x), head, contrast, indices_tuple=indices).values
        expected = value.clamp_min(0)
        torch.testing.assert_close(embedder.hessian_.eigenvalues, expected, rtol=1e-4, atol=1e-8)


def test_closed_form_raw_variance_is_the_sampled_one(model, loader, data):
    embedder = fit(model, loader, distance="euclidean", hessian="positives")
    x = data[0][:4]
    draws = embedder.sample(x, 40_000, torch.Generator().manual_seed(0))
    embedding = embedder(x)
    assert torch.equal(embedding.mean, model(x).detach())
    tolerance = 5 * (embedding.variance / len(draws)).sqrt()
    assert bool(((draws.mean(0) - embedding.mean).abs() <= tolerance).all())
    torch.testing.assert_close(draws.var(0), embedding.variance, rtol=0.04, atol=0)
    marginal = embedding.sample(40_000, torch.Generator().manual_seed(1))
    torch.testing.assert_close(marginal.var(0), embedding.variance, rtol=0.04, atol=0)


def test_sphere_has_unit_means_and_samples(model, loader, data):
    for embedder in (
        fit(Normalized(model), loader, distance="euclidean", hessian="positives"),
        fit(model, loader, distance="arccos", hessian="positives"),
    ):
        embedding = embedder(data[0])
        torch.testing.assert_close(embedding.mean, Normalized(model)(data[0]).detach())
        for draws in (embedding.sample(3), embedder.sample(data[0], 3)):
            torch.testing.assert_close(draws.norm(dim=-1), torch.ones(3, 60))


def test_joint_draws_share_their_weights(model, loader, data):
    embedder = fit(model, loader, distance="euclidean", hessian="positives")
    twice = torch.cat([data[0][:1], data[0][:1]])
    joint = embedder.sample(twice, 5)
    torch.testing.assert_close(joint[:, 0], joint[:, 1], rtol=1e-4, atol=1e-6)
    independent = embedder(twice).sample(5)
    assert not torch.allclose(independent[:, 0], independent[:, 1])
    draw = embedder.draw(5, torch.Generator().manual_seed(0))
    together = draw(data[0])
    apart = torch.cat([draw(data[0][:7]), draw(data[0][7:])], dim=1)
    torch.testing.assert_close(together, apart)
    again = embedder.draw(5, torch.Generator().manual_seed(0))(data[0])
    assert torch.equal(together, again)


def test_embed_concatenates_batches(model, loader, data):
    embedder = fit(model, loader)
    embedding, labels = embedder.embed(loader, progress=False)
    torch.testing.assert_close(embedding.variance, embedder(data[0]).variance)
    assert torch.equal(labels, data[1])
    assert len(embedding[labels == 1]) == 20
    assert embedding[:5].uncertainty.shape == (5,)
    assert torch.equal(embedding[7].mean, embedding.mean[7:8])


def test_nothing_global_and_nothing_of_the_model_changes(model, loader, data):
    model.train()
    model[0].weight.requires_grad_(False)
    state, before = torch.get_rng_state(), {k: v.clone() for k, v in model.state_dict().items()}
    embedder = fit(model, loader)
    embedder(data[0])
    embedder.tune_prior()
    embedder.sample(data[0], 2, torch.Generator())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert [p.requires_grad for p in model.parameters()] == [False, True, True, True]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_n_effective_scales_the_curvature(model, loader):
    default = fit(model, loader)
    assert default.posterior_.n_effective == 60
    tenfold = fit(model, loader, n_effective=600)
    posterior = tenfold.posterior_
    precision = default.hessian_.eigenvalues * 600 + posterior.prior_precision
    torch.testing.assert_close(posterior.variance, (posterior.temperature / precision).float())


# ---------------------------------------------------------------- prior precision


def test_marglik_finds_mackays_fixed_point(model, loader):
    embedder = fit(model, loader, hessian="positives")
    tau = embedder.tune_prior()
    nh = embedder.posterior_.n_effective * embedder.hessian_.eigenvalues
    mackay = float((nh / (nh + tau)).sum() / embedder.posterior_.mean.double().square().sum())
    assert tau == pytest.approx(mackay, rel=1e-3)
    assert embedder.posterior_.prior_precision == embedder.settings.prior_precision == tau


def test_validation_takes_the_best_of_the_grid(model, loader):
    embedder = fit(model, loader)
    target = float(embedder(loader[0][0]).variance.mean()) / 100
    before = embedder.posterior_.prior_precision

    def metric(embedding, labels):
        assert len(embedding) == len(labels) == 60
        return -abs(float(embedding.variance.mean().log()) - float(torch.tensor(target).log()))

    tau = embedder.tune_prior("validation", loader=loader, metric=metric, progress=False)
    assert tau > before
    spread = float(embedder.embed(loader, progress=False)[0].variance.mean())
    assert 0.2 < spread / target < 5


@pytest.mark.parametrize("tune", [False, True])
def test_a_prior_at_the_edge_warns(model, loader, tune):
    with pytest.warns(PriorAtEdgeWarning, match="edge"):
        fit(model, loader).tune_prior(bounds=(1e4, 1e6))
    with pytest.warns(PriorAtEdgeWarning, match="n_effective" if tune else "prior precision"):
        fit(model, loader, hessian="positives").tune_prior(
            "validation",
            loader=loader,
            metric=lambda e, _: -float(e.variance.sum()),
            tune_n_effective=tune,
            progress=False,
        )


def test_validation_needs_its_arguments(model, loader):
    embedder = fit(model, loader)
    with pytest.raises(InputError, match="loader= and metric="):
        embedder.tune_prior("validation")
    with pytest.raises(UnknownNameError, match="'marglik', 'validation'"):
        embedder.tune_prior("cv")
    with pytest.raises(NonFiniteError, match="NaN at every"):
        embedder.tune_prior(
            "validation", loader=loader, progress=False, metric=lambda *_: float("nan")
        )
    for bounds in ((1, 1), (0, 1), (1,)):
        with pytest.raises(InputError, match="bounds"):
            embedder.tune_prior(bounds=bounds)


# ---------------------------------------------------------------- warnings and bad input


def test_fixed_euclidean_without_margin_warns_and_names_the_remedy(model, loader):
    with pytest.warns(DegenerateCurvatureWarning, match="arccos.*margin") as caught:
        embedder = fit(model, loader, distance="euclidean", hessian="fixed")
    assert caught[0].filename == __file__  # it points at the user's line, not at ours
    assert float(embedder.hessian_.eigenvalues.max()) == 0  # balanced classes: exactly zero
    assert embedder.hessian_.negative_fraction == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(model, loader, distance="euclidean", hessian="fixed", margin=0.5)


def test_a_curvature_that_means_nothing_has_the_prior_of_the_weights(model, data):
    """Of unbalanced classes it is not zero, but no more than zero to go by."""
    x, y = data
    some = torch.cat([(y == c).nonzero()[: 3 + 5 * n, 0] for n, c in enumerate(y.unique())])
    with pytest.warns(DegenerateCurvatureWarning):
        embedder = fit(model, [(x[some], y[some])], distance="euclidean", hessian="fixed")
    assert float(embedder.hessian_.eigenvalues.max()) > 0
    theta = embedder.posterior_.mean.double()
    expected = len(theta) / float(theta.square().sum())
    assert embedder.posterior_.prior_precision == pytest.approx(expected, rel=1e-6)


def test_a_curvature_clipped_away_warns(data):
    x, y = data
    collapsed = nn.Linear(5, 2)  # one blob: negatives outweigh positives everywhere
    with pytest.warns(DegenerateCurvatureWarning, match="100%.*was negative"):
        fit(collapsed, [(x + 10 * y[:, None], y)], distance="euclidean", hessian="full")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"distance": "cosine"}, "distance='cosine'.*'euclidean', 'arccos'"),
        ({"hessian": "ggn"}, "hessian='ggn'.*'full', 'positives', 'fixed'"),
        ({"structure": "dense"}, "structure='dense'.*'diag', 'kron', 'full'"),
        ({"backend": "jax"}, "backend='jax'.*'auto', 'analytic', 'torch.func'"),
        ({"pairs": "some"}, "pairs='some'.*'all', 'batch'"),
        ({"prior_precision": 0}, "prior_precision=0"),
        ({"prior_precision": -1.0}, "prior_precision=-1.0"),
        ({"prior_precision": float("nan")}, "prior_precision=nan"),
        ({"n_effective": 0}, "n_effective=0"),
        ({"margin": -1}, "margin=-1"),
    ],
)
def test_bad_settings_are_named_at_once(model, settings, message):
    with pytest.raises(InputError, match=message):
        LaplaceEmbedder(model, **settings)


X = torch.ones(4, 5)
Y = torch.tensor([0, 1, 0, 1])


@pytest.mark.parametrize(
    ("batches", "error", "message"),
    [
        ([], EmptyLoaderError, "yielded no batch"),
        ([X], LabelError, r"batch 0 is a tensor \[4, 5\], so its labels are missing"),
        ([(X, Y, Y)], LabelError, r"a tuple \(\[4, 5\], \[4\], \[4\]\).*x, y, \*_ in loader"),
        ([(X, None)], LabelError, "None"),
        ([(X, Y[:3])], LabelError, "4 rows but 3 labels"),
        ([(X, Y.float())], LabelError, "float32.*whole numbers"),
        ([(X, ["cat", None, "cat", "dog"])], LabelError, "whole number.*none missing"),
        ([(X, ["cat", "dog"] * 2), (X, Y)], LabelError, "some batches have class names"),
        ([(X, Y[:, None])], LabelError, r"\(4, 1\)"),
        ([(X, torch.zeros(4, dtype=torch.int64))], LabelError, "at least two classes"),
        (
            [(X, Y), (X * torch.nan, Y)],
            NonFiniteError,
            "batch 1 holds NaN.* 4, 5, 6, 7 .4 of the 4",
        ),
        (3, InputError, "loader is a int"),
    ],
)
def test_bad_loaders_are_named_and_leave_the_embedder_unfitted(model, batches, error, message):
    embedder = LaplaceEmbedder(model)
    with pytest.raises(error, match=message):
        embedder.fit(batches, progress=False)
    with pytest.raises(NotFittedError, match="call fit"):
        embedder(X)


def test_a_failed_second_fit_keeps_the_first(model, loader):
    embedder = fit(model, loader)
    kept = embedder.posterior_
    with pytest.raises(EmptyLoaderError):
        embedder.fit([], progress=False)
    assert embedder.posterior_ is kept


def test_overflow_is_an_error_not_an_infinite_posterior(data):
    x, y = data
    with pytest.raises(NonFiniteError, match="float64"):
        fit(nn.Linear(5, 2), [(1e25 * x, y)], distance="euclidean", hessian="positives")


def test_dense_hessian_of_a_large_head_names_the_bytes(data):
    x, y = data
    embedder = fit(nn.Sequential(nn.Linear(5, 2000), nn.Linear(2000, 8)), [(x, y)])
    with pytest.raises(InputError, match=r"2,\d\d\d,\d\d\d,\d\d\d bytes"):
        embedder.hessian_.to_dense()


@pytest.mark.parametrize(
    ("second", "error", "message"),
    [
        ((X * torch.nan, Y), NonFiniteError, "batch 1 holds NaN.* 4, 5, 6, 7 .4 of the 4"),
        ((X, Y[:3]), LabelError, "loader batch 1 has 4 rows but 3 labels"),
        ((X, 0 * Y), LabelError, "loader batch 1: all 4 items have one label"),
    ],
)
def test_a_bad_batch_is_named_in_batch_mode_too(model, second, error, message):
    with pytest.raises(error, match=message):
        fit(model, [(X, Y), second], pairs="batch")


@pytest.mark.parametrize(
    ("head", "structure"),
    [
        (nn.Linear(6, 3), "kron"),
        (nn.Linear(2_049, 3), "diag"),
        (nn.Linear(3, 2_049), "diag"),
        (nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)), "kron"),
    ],
)
def test_the_default_structure_depends_on_the_width(head, structure):
    first = head if isinstance(head, nn.Linear) else head[0]
    x, y = torch.randn(12, first.in_features), torch.arange(12) % 3
    embedder = LaplaceEmbedder(head, head=head).fit([(x, y)], progress=False)
    assert embedder.settings.structure == structure
    same = LaplaceEmbedder(head, head=head, structure=structure).fit([(x, y)], progress=False)
    assert torch.equal(embedder(x).variance, same(x).variance)


def test_the_default_structure_of_any_other_head_is_its_diagonal(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    x, y = torch.randn(12, 4), torch.arange(12) % 3
    embedder = LaplaceEmbedder(model, head=model).fit([(x, y)], progress=False)
    assert embedder.settings.structure == "diag"
    embedder.save(tmp_path / "file")
    assert LaplaceEmbedder.load(tmp_path / "file", model).settings.structure == "diag"


def test_the_size_of_negative_curvature_counts_unless_it_is_clipped(model, loader):
    settings = {"hessian": "full", "structure": "full"}
    sizes = fit(model, loader, positivity="absolute", **settings).hessian_
    clipped = fit(model, loader, **settings).hessian_
    assert sizes.negative_fraction == clipped.negative_fraction > 0
    kept = clipped.eigenvalues > 0
    torch.testing.assert_close(sizes.eigenvalues[kept], clipped.eigenvalues[kept])
    lost = float(sizes.eigenvalues[~kept].sum() / sizes.eigenvalues.sum())
    assert lost == pytest.approx(sizes.negative_fraction)


def test_sizes_are_the_default_and_files_without_the_setting_were_clipped(model, loader):
    embedder = LaplaceEmbedder(model).fit(loader, progress=False)
    assert embedder.settings.positivity == "absolute"
    content = embedder.settings.to_json()
    assert Settings.from_json(content).positivity == "absolute"
    del content["positivity"]
    assert Settings.from_json(content).positivity == "clip"
    with pytest.raises(UnknownNameError, match="positivity='zero'.*'absolute', 'clip'"):
        LaplaceEmbedder(model, positivity="zero")


@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
def test_only_what_is_read_is_computed(model, loader, data, structure, monkeypatch):
    embedder, calls, compute = fit(model, loader, structure), [], _predicted.covariance
    counted = lambda *arguments: calls.append(1) or compute(*arguments)  # noqa: E731
    monkeypatch.setattr(_predicted, "covariance", counted)
    embedding = embedder(data[0])
    _ = embedding.mean, embedding.epistemic, embedding.ambiguity
    assert not calls
    torch.testing.assert_close(embedding.uncertainty, embedding.variance.sum(1))
    assert calls == [1]


@pytest.mark.parametrize("head", [None, "append"])
def test_inputs_may_change_before_the_variance_is_read(head):
    """Of a model that is its own head, or hands its inputs on, what enters the head is theirs."""
    x, y = torch.randn(60, 6, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 4
    model = nn.Linear(6, 3) if head is None else Precomputed(6)
    embedder = LaplaceEmbedder(model, head=head).fit([(x, y)], progress=False)
    expected = embedder(x)
    numbers = expected.variance, expected.epistemic, expected.mean
    mine = x.clone()
    embedding = embedder(mine)
    mine.mul_(-3).add_(1)
    for ours, theirs in zip(
        (embedding.variance, embedding.epistemic, embedding.mean), numbers, strict=True
    ):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("saved", [False, True], ids=["fitted", "loaded"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("backend", ["auto", "torch.func", "backpack"])
@pytest.mark.parametrize("kind", ["chain", "one layer", "normalisation"])
def test_weights_may_change_before_the_variance_is_read(kind, backend, dtype, saved, tmp_path):
    """Of a head that is not one linear layer, the Jacobian has weights in it."""
    torch.manual_seed(0)
    middle = nn.BatchNorm1d(8) if kind == "normalisation" else nn.Tanh()
    model = nn.Sequential(nn.Linear(6, 8), middle, nn.Linear(8, 3)).eval().to(dtype)
    x, y = torch.randn(60, 6, dtype=dtype), torch.arange(60) % 4
    head = None if kind == "one layer" else model[0:3]
    embedder = LaplaceEmbedder(model, head=head, backend=backend, structure="diag").fit(x, y)
    if saved:
        embedder.save(tmp_path / "p")
        embedder = LaplaceEmbedder.load(tmp_path / "p", model)
    expected, kept = embedder(x[:5]), embedder(x[:5])
    numbers = expected.variance, expected.uncertainty, expected.mean
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data.mul_(3)
    for ours, theirs in zip((kept.variance, kept.uncertainty, kept.mean), numbers, strict=True):
        assert torch.equal(ours, theirs)


def test_a_variance_that_overflows_is_named_when_it_is_read(model, loader, data):
    embedder = fit(nn.Linear(2, 2), [(data[0].flatten(1)[:, :2], data[1])], distance="euclidean")
    embedding = embedder(torch.full((3, 2), 1e30))
    assert embedding.mean.isfinite().all()
    with pytest.raises(NonFiniteError, match="uncertainties.*batch of 3 overflow"):
        _ = embedding.variance


@pytest.mark.parametrize("width", [6, 300])
def test_inputs_that_ask_for_gradients(width):
    """Strips of a product (from 257 columns on) let them pass, as a whole product does."""
    x = torch.randn(60, width, generator=torch.Generator().manual_seed(0))
    embedder = LaplaceEmbedder(nn.Linear(width, 3))
    embedder.fit([(x, torch.arange(60) % 4)], progress=False)
    asked, plain = x[:5].clone().requires_grad_(), embedder(x[:5])
    embedding = embedder(asked)
    for name in ("variance", "uncertainty", "epistemic", "ambiguity"):
        number = getattr(embedding, name)
        torch.testing.assert_close(number.detach(), getattr(plain, name))
        (gradient,) = torch.autograd.grad(number.sum(), asked, retain_graph=True)
        assert gradient.isfinite().all()
        assert bool((gradient != 0).any())


WIDE = torch.randn(60, 8193, generator=torch.Generator().manual_seed(0))
LIMITED = r"8,193 numbers enter the head, and epistemic.* up to 8,192.*PCA.*or use uncertainty"


def wide_head(**settings) -> LaplaceEmbedder:
    model = nn.Sequential(nn.Identity(), nn.Linear(8193, 3))
    return LaplaceEmbedder(model, **settings).fit(WIDE, LABELS, progress=False)


LABELS = torch.arange(60) % 6
WIDE_FITS = {
    "a linear layer": wide_head,
    "a chain": lambda: LaplaceEmbedder(
        (model := nn.Sequential(nn.Linear(8193, 3), nn.Tanh(), nn.Linear(3, 3))),
        model[:],
        structure="diag",
    ).fit(WIDE, LABELS, progress=False),
    "vectors": lambda: LaplaceEmbedder.from_embeddings(WIDE, LABELS),
    "several passes": lambda: wide_head(distance="euclidean", hessian="full", margin=1.0),
    "of names": lambda: LaplaceEmbedder(nn.Linear(8193, 3)).fit(
        WIDE.numpy(), [f"class {y}" for y in LABELS], progress=False
    ),
}


@pytest.mark.parametrize("kind", WIDE_FITS)
def test_inputs_that_are_too_wide_for_epistemic_are_told_at_the_fit(kind, tmp_path):
    with pytest.warns(LimitWarning, match=LIMITED) as told:
        embedder = WIDE_FITS[kind]()
    assert sum(warning.category is LimitWarning for warning in told) == 1
    assert [w.filename for w in told if w.category is LimitWarning] == [__file__]
    shown = " ".join(repr(embedder).split())
    lacks = "has uncertainty lacks epistemic, near, far, local, ambiguity: 8,193 numbers enter"
    assert f"{lacks} the head, limit 8,192" in shown
    embedder.save(tmp_path / "posterior")
    loaded = LaplaceEmbedder.load(
        tmp_path / "posterior", None if kind == "vectors" else embedder.model
    )
    assert "limit 8,192" in repr(loaded)


def test_ambiguity_has_no_largest_number_of_classes():
    y = torch.arange(2049).repeat_interleave(2)
    g = torch.Generator().manual_seed(0)
    x = torch.randn(2049, 4, generator=g)[y] + 0.3 * torch.randn(len(y), 4, generator=g)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LimitWarning)
        embedder = LaplaceEmbedder.from_embeddings(x, y)
    assert "ambiguity" in " ".join(repr(embedder).split())
    fitted, found = embedder.fitted_.near_far, embedder(x[:3])
    assert fitted.channel.shape == (2049, len(fitted.told))
    assert len(fitted.told) < 2049
    assert bool(found.epistemic.isfinite().all())
    assert bool(((found.ambiguity >= 0) & (found.ambiguity <= np.log(2049))).all())


def test_within_the_limits_nothing_is_told_and_print_shows_what_there_is():
    with warnings.catch_warnings():
        warnings.simplefilter("error", LimitWarning)
        embedder = LaplaceEmbedder.from_embeddings(WIDE[:, :2048], LABELS)
        batches = LaplaceEmbedder(nn.Linear(8193, 3), pairs="batch")
        batches.fit([(WIDE, LABELS)], progress=False)
    assert "has        uncertainty, epistemic, near, far, local, ambiguity" in repr(embedder)
    assert "nothing of its points was kept" in repr(
        LaplaceEmbedder(nn.Linear(8, 3), pairs="batch").fit([(WIDE[:, :8], LABELS)], progress=False)
    )


def test_a_misspelt_keyword_is_answered_with_the_one_that_was_meant(tmp_path):
    x, y = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3
    embedder = LaplaceEmbedder.from_embeddings(x, y)
    index = embedder.index(x, y)
    calls = [
        (lambda: LaplaceEmbedder(embedder.model, strucure="kron"), "LaplaceEmbedder", "structure"),
        (lambda: LaplaceEmbedder.from_embeddings(x, y, hesian="fixed"), "LaplaceE.*", "hessian"),
        (lambda: embedder.sample(x, sed=1), "LaplaceEmbedder.sample", "seed"),
        (lambda: index.guarantee(precison=0.9), "Index.guarantee", "precision"),
    ]
    for call, function, meant in calls:
        said = rf"^{function}\(\) got an unexpected .*; did you mean '{meant}'\?$"
        with pytest.raises(TypeError, match=said):
            call()


def test_a_tensor_in_the_place_of_a_name_is_said_by_its_shape():
    with pytest.raises(UnknownNameError, match=r"^distance.*Tensor \[9\].*name\. Choose"):
        LaplaceEmbedder(nn.Linear(2, 2), distance=torch.arange(9))

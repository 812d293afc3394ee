"""The size of a posterior: a prior of one observation, a temperature by the reach of classes."""

from __future__ import annotations

import warnings
from functools import cache
from itertools import pairwise
from statistics import mean, median

import pytest
import torch
from pytorch_metric_learning.losses import ContrastiveLoss
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.datasets import load
from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import InputError, LaplaceMetricWarning, WideDrawsWarning
from laplace_metric.laplace import Settings, _draws
from laplace_metric.laplace._class_reach import class_reach
from laplace_metric.laplace._draws import DrawnPoints
from laplace_metric.laplace._new_points import n_terms
from laplace_metric.laplace._temperature import MOVED, variance_of_new_points
from laplace_metric.models._feature_store import FeatureStore
from laplace_metric.training import train_embedder
from tests.saved_files import parts_of, rewrite

N_FITTED = 900


def digits() -> tuple[Tensor, Tensor]:
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x / 16), torch.tensor(y)


def on_digits(distance: str, structure: str, **settings) -> LaplaceEmbedder:
    """An untrained head of 16 outputs, which finds 93 % of the digits' neighbours."""
    x, y = digits()
    torch.manual_seed(0)
    hessian = "positives" if distance == "euclidean" else "fixed"
    how = {"distance": distance, "hessian": hessian, "structure": structure, **settings}
    embedder = LaplaceEmbedder(nn.Linear(64, 16).double(), **how)
    return quietly(embedder, x[:N_FITTED], y[:N_FITTED])


def quietly(embedder: LaplaceEmbedder, x: Tensor, y: Tensor, **options) -> LaplaceEmbedder:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LaplaceMetricWarning)
        return embedder.fit([(x, y)], progress=False, **options)


def small(**settings) -> tuple[LaplaceEmbedder, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    y = torch.arange(60) % 4
    x = 2 * torch.randn(4, 6, generator=g, dtype=torch.float64)[y]
    x = x + torch.randn(60, 6, generator=g, dtype=torch.float64)
    torch.manual_seed(0)
    return quietly(LaplaceEmbedder(nn.Linear(6, 4).double(), **settings), x, y), x, y


def recall(queries: Tensor, items: Tensor, y: Tensor, *, spherical: bool) -> float:
    """Share of points whose nearest other one is of their class, over all draws [S, N, Z]."""
    if spherical:
        queries, items = (nn.functional.normalize(v, dim=-1) for v in (queries, items))
    apart = torch.cdist(queries, items)
    apart.diagonal(dim1=1, dim2=2).fill_(torch.inf)
    return float((y[apart.argmin(-1)] == y).double().mean())


@pytest.mark.parametrize("at_once", [1, 4, 9])
@pytest.mark.parametrize("layers", [1, 2])
def test_heads_are_drawn_a_few_at_a_time(monkeypatch, at_once, layers):
    """16 draws, the same as at once.

    A head has a multiple of 16 numbers: of others PyTorch draws the last ones another way.
    """
    parts = [nn.Linear(8, 8, bias=False), nn.Tanh(), nn.Linear(8, 4, bias=False)]
    head = parts[2] if layers == 1 else nn.Sequential(*parts)
    model = nn.Sequential(nn.Identity(), head)
    x, y = torch.randn(60, 8, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 4
    embedder = quietly(LaplaceEmbedder(model, head=head, structure="diag"), x, y)
    sizes = []
    together = DrawnPoints.of(embedder.fitted_, x, y)
    n_numbers, randn = len(embedder.posterior_.mean), torch.randn

    def counted(shape, **options):
        sizes.append(shape)
        return randn(shape, **options)

    monkeypatch.setattr(torch, "randn", counted)
    monkeypatch.setattr(_draws, "LARGE_BYTES", 4 * at_once * n_numbers)
    by_parts = DrawnPoints.of(embedder.fitted_, x, y)
    assert max(n for n, _ in sizes) == at_once
    assert sum(n for n, _ in sizes) == len(by_parts.embed(1.0)) == 16
    torch.testing.assert_close(by_parts.embed(1.0), together.embed(1.0))


# ---------------------------------------------------------------- what is chosen


@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
@pytest.mark.parametrize("distance", ["arccos", "euclidean"])
def test_draws_find_neighbours_as_their_means_do_and_much_hotter_ones_do_not(distance, structure):
    """On all digits, half of them new, under heads of another seed than those of the fit."""
    embedder, (x, y) = on_digits(distance, structure), digits()
    head, spherical = embedder.fitted_.jacobian, embedder.spherical
    with torch.no_grad():
        means = embedder.model(x)[None]
    plain = recall(means, means, y, spherical=spherical)
    assert plain > 0.9
    found = {}
    for factor in (1, 16):
        posterior = embedder.posterior_
        heated = posterior.with_temperature(factor * posterior.temperature)
        heads = heated.sample(8, torch.Generator().manual_seed(9))
        draws = [head.forward_with(x, one[None]) for one in heads]
        among_draws = sum(recall(z, z, y, spherical=spherical) for z in draws)
        among_means = sum(recall(z, means, y, spherical=spherical) for z in draws)
        found[factor] = min(among_draws, among_means) / len(draws)
    assert found[1] >= plain - 0.015  # .01, and the rest is the sampling of 900 points
    assert found[16] < plain - 0.05


@pytest.mark.parametrize("distance", ["arccos", "euclidean"])
def test_the_covariance_is_that_of_the_temperature_and_of_one_observation(distance):
    embedder, _, _ = small(distance=distance, hessian="positives", structure="full")
    posterior = embedder.posterior_
    theta = torch.cat([embedder.model.weight.flatten(), embedder.model.bias]).detach()
    curvature = posterior.curvature.to_dense()
    tau = float(curvature.trace()) / len(theta)
    assert posterior.prior_precision == pytest.approx(tau, rel=1e-12)
    precision = posterior.n_effective * curvature + tau * torch.eye(len(theta)).double()
    covariance = posterior.temperature * torch.linalg.inv(precision)
    draws = posterior.sample(100_000, torch.Generator().manual_seed(0)) - theta
    error = (draws.mT @ draws / len(draws) - covariance).norm() / covariance.norm()
    assert float(error) < 0.02
    torch.testing.assert_close(posterior.variance, covariance.diagonal())
    assert embedder.settings.prior_precision == embedder.settings.temperature == "auto"


@pytest.mark.parametrize("distance", ["arccos", "euclidean"])
def test_the_temperature_moves_no_ranking_of_uncertainties(distance):
    """Of directions it is that of traces, up to what is not of first order."""
    found, traces = [], []
    for temperature in (1e-6, 1.0, 100.0):
        embedder, x, _ = small(distance=distance, hessian="positives", temperature=temperature)
        assert embedder.posterior_.temperature == temperature
        e = embedder(x)
        found.append(e.uncertainty)
        tangent = (
            e.distribution.covariance.tangent_trace(e.mean) / e.distribution.loc.norm(dim=1) ** 2
        )
        traces.append(tangent if distance == "arccos" else e.distribution.covariance.trace())
    assert all(torch.equal(t.argsort(), traces[0].argsort()) for t in traces)
    torch.testing.assert_close(found[0], traces[0], rtol=1e-3, atol=0)
    if distance == "euclidean":
        assert all(torch.equal(u.argsort(), found[0].argsort()) for u in found)


def test_a_fit_chooses_the_same_again_and_leaves_the_callers_random_numbers_alone():
    torch.manual_seed(7)
    first = on_digits("arccos", "kron").posterior_
    torch.manual_seed(7)
    embedder, (x, y) = on_digits("arccos", "kron"), digits()
    before = torch.get_rng_state()
    again = quietly(embedder, x[:N_FITTED], y[:N_FITTED]).posterior_
    assert torch.equal(torch.get_rng_state(), before)
    assert first.temperature == again.temperature
    assert 2.0**-24 < first.temperature < 1


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("distance", ["arccos", "euclidean"])
def test_new_points_vary_by_a_share_of_the_squared_reach_of_their_class(distance, layers):
    """On average over all points, which are compared; of linear and of layered heads."""
    _, x, y = small()
    torch.manual_seed(0)
    parts = [nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)]
    head = nn.Sequential(*parts[-1:] if layers == 1 else parts).double()
    x = x if layers == 2 else torch.cat([x, x[:, :2]], 1)
    hessian = "positives" if distance == "euclidean" else "fixed"
    embedder = quietly(LaplaceEmbedder(head, head, distance, hessian), x, y)
    fitted, spherical = embedder.fitted_, distance == "arccos"
    store = FeatureStore.of(x, y)
    reach = class_reach(head, x, y, store.blocks(), spherical=spherical)
    variance = variance_of_new_points(fitted, x, y, n_terms(y, fitted.loss))
    assert 0 < fitted.posterior.temperature < 1
    assert float(variance.mean()) == pytest.approx(MOVED * reach, rel=1e-9)


def test_a_narrow_posterior_keeps_laplaces_own_temperature():
    assert small(n_effective=1e12, prior_precision=1e12)[0].posterior_.temperature == 1


@pytest.mark.parametrize("distance", ["arccos", "euclidean"])
def test_without_a_class_of_two_members_the_temperature_is_that_of_the_weights(distance):
    _, x, _ = small()
    torch.manual_seed(0)
    embedder = LaplaceEmbedder(nn.Linear(6, 4).double(), distance=distance)
    quietly(embedder, x, torch.arange(60))
    as_wide_as_the_weights(embedder)


def test_where_points_are_not_kept_the_temperature_is_that_of_the_weights():
    as_wide_as_the_weights(small(pairs="batch")[0])
    strong = small(pairs="batch", prior_precision=1e4)[0]
    assert strong.posterior_.temperature == 1  # narrower than the weights: Laplace's own
    assert small(pairs="batch", temperature=3.0)[0].posterior_.temperature == 3


def as_wide_as_the_weights(embedder: LaplaceEmbedder) -> None:
    posterior = embedder.posterior_
    theta = torch.cat([embedder.model.weight.flatten(), embedder.model.bias]).detach()
    mean_square = float(theta.square().mean())
    assert posterior.temperature / posterior.prior_precision == pytest.approx(mean_square)
    assert posterior.temperature <= 1
    assert embedder.fitted_.draws is None


# ---------------------------------------------------------------- what is told


def test_what_draws_do_is_told_in_print_and_in_the_diagnosis():
    embedder = small()[0]
    draws, posterior = embedder.fitted_.draws, embedder.posterior_
    assert str(draws) in str(embedder)
    assert f"temperature={posterior.temperature:.4g}" in str(embedder)
    assert f"prior_precision={posterior.prior_precision:.4g}" in str(embedder)
    diagnosis = embedder.diagnose()
    assert diagnosis.draws == draws
    assert diagnosis.temperature == posterior.temperature
    assert str(draws) in str(diagnosis)


@pytest.mark.parametrize("distance", ["arccos", "euclidean"])
def test_the_numbers_of_the_draws_are_those_of_other_draws(distance):
    """Of all 60 points; four heads of another seed have some other spread and recall."""
    embedder, x, y = small(distance=distance, hessian="positives")
    draws, spherical = embedder.fitted_.draws, distance == "arccos"
    z = embedder.sample(x, 2_000, torch.Generator().manual_seed(3))
    means = embedder(x).mean
    spread = float((z - means).square().sum(-1).mean())
    if not spherical:
        spread /= float((means - means.mean(0)).square().sum(1).mean())
    assert draws.spread == pytest.approx(spread, rel=0.5)
    assert draws.recall == pytest.approx(recall(z[:50], z[:50], y, spherical=spherical), abs=0.05)
    one = means[None]
    assert draws.recall_of_means == pytest.approx(recall(one, one, y, spherical=spherical))


def test_weights_of_layers_move_by_the_root_of_the_temperature():
    _, x, y = small()
    torch.manual_seed(0)
    head = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).double()
    how = {"distance": "euclidean", "hessian": "positives", "temperature": 1e-8}
    embedder = quietly(LaplaceEmbedder(head, head=head, **how), x, y)
    points = DrawnPoints.of(embedder.fitted_, x, y)
    z, one, quarter = points.embed(0.0), points.embed(1.0), points.embed(0.25)
    assert len(one) == 16  # of 60 points
    torch.testing.assert_close(quarter - z, (one - z) / 2, rtol=1e-2, atol=1e-7)


@pytest.mark.parametrize(("width", "n"), [(2, 500), (400, 326), (800, 250)])
def test_points_are_fewer_where_embeddings_are_wide(monkeypatch, width, n):
    """131,072 numbers, but at least 250 points, which differ."""
    compared, of = [], DrawnPoints.of
    monkeypatch.setattr(DrawnPoints, "of", lambda _, h, y: compared.append(h) or of(_, h, y))
    x, y = torch.randn(700, 5), torch.arange(700) % 2
    embedder = quietly(LaplaceEmbedder(nn.Linear(5, width), temperature=1.0), x, y)
    assert compared[0].shape == (n, 5)
    assert len(compared[0].unique(dim=0)) == n
    assert of(embedder.fitted_, compared[0], y[:n]).embed(1.0).shape == (8, n, width)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_all_points_share_moves_no_neighbour(dtype):
    g = torch.Generator().manual_seed(0)
    z = torch.randn(3, 200, 8, generator=g).to(dtype)
    labels = torch.arange(200) % 7
    near, far = (
        DrawnPoints(lambda t: z, labels, spherical=False).margins(z + c) > 0
        for c in (0.0, 2.0**10)  # squares of 8 million, beside distances of 1
    )
    assert float((near != far).double().mean()) < 0.01


def test_a_diagnosis_finds_draws_that_are_noise():
    findings = " ".join(small(temperature=100.0)[0].diagnose().findings)
    assert "wide: draws lie" in findings
    assert "draws retrieve less than their means" in findings
    findings = " ".join(small()[0].diagnose().findings)
    assert "wide" not in findings
    assert "draws" not in findings


# ---------------------------------------------------------------- files


def test_temperature_and_draws_are_saved_and_loaded(tmp_path):
    embedder, x, _ = small()
    embedder.save(tmp_path / "saved")
    loaded = LaplaceEmbedder.load(tmp_path / "saved", embedder.model)
    assert loaded.fitted_.draws == embedder.fitted_.draws
    assert loaded.posterior_.temperature == embedder.posterior_.temperature != 1
    assert loaded.posterior_.prior_precision == embedder.posterior_.prior_precision
    assert loaded.settings == embedder.settings
    assert torch.equal(loaded(x).variance, embedder(x).variance)
    assert str(loaded) == str(embedder)


def test_a_fit_without_draws_is_saved_and_loaded(tmp_path):
    embedder = small(pairs="batch")[0]
    embedder.save(tmp_path / "saved")
    assert LaplaceEmbedder.load(tmp_path / "saved", embedder.model).fitted_.draws is None


def test_a_file_that_was_written_before_there_was_a_temperature_has_one(tmp_path):
    embedder, x, _ = small(prior_precision=3.0, temperature=1.0)
    path = tmp_path / "saved"
    embedder.save(path)

    def age(content, _):
        for name in ("temperature", "prior_precision", "draws"):
            del content[name]
        del content["settings"]["temperature"]

    (name,) = [name for name, part in parts_of(path).items() if "draws" in part.content]
    rewrite(path, name, age)
    loaded = LaplaceEmbedder.load(path, embedder.model)
    assert loaded.posterior_.temperature == loaded.settings.temperature == 1
    assert loaded.posterior_.prior_precision == 3
    assert loaded.fitted_.draws is None
    assert torch.equal(loaded(x).variance, embedder(x).variance)


# ---------------------------------------------------------------- tuning


def test_the_temperature_is_tuned_by_a_metric_and_forgets_the_draws():
    embedder, x, y = small(distance="euclidean", hessian="positives")
    target = 8 * float(embedder(x).variance.mean())

    def metric(embedding, _):
        return -abs(float((embedding.variance.mean() / target).log()))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LaplaceMetricWarning)
        tau = embedder.tune_prior(
            "validation", loader=[(x, y)], metric=metric, bounds=(1e3, 1e4), tune_temperature=True
        )
    posterior = embedder.posterior_
    assert embedder.settings.temperature == posterior.temperature
    assert embedder.settings.prior_precision == posterior.prior_precision == tau
    assert 0.5 <= float(embedder(x).variance.mean()) / target <= 2  # candidates are 4 apart
    assert embedder.fitted_.draws is None


def test_tuning_the_prior_alone_keeps_the_width_outside_of_the_data():
    embedder = small(hessian="positives")[0]
    before = embedder.posterior_
    tau = embedder.tune_prior(bounds=(1e-3, 2 * before.prior_precision))
    width = before.temperature / before.prior_precision
    assert tau != before.prior_precision
    assert embedder.posterior_.temperature / tau == pytest.approx(width)
    again = embedder.tune_prior(bounds=(1e-3, before.prior_precision / 2))  # and once more
    assert again != tau
    assert embedder.posterior_.temperature / again == pytest.approx(width)
    embedder = small(hessian="positives")[0]
    embedder.tune_prior(bounds=(1e8, 1e9))
    assert embedder.posterior_.temperature == 1  # no hotter than Laplace's own
    back = embedder.tune_prior(bounds=(1e-3, before.prior_precision / 2))
    assert embedder.posterior_.temperature / back == pytest.approx(width)  # not of the bound
    with pytest.raises(InputError, match="tune_temperature=True needs method='validation'"):
        embedder.tune_prior(tune_temperature=True)


def test_a_file_keeps_the_width_that_a_temperature_of_1_hides(tmp_path):
    embedder, path = small(hessian="positives")[0], tmp_path / "p.safetensors"
    prior = embedder.posterior_.prior_precision
    embedder.tune_prior(bounds=(1e8, 1e9))
    embedder.save(path)
    loaded = LaplaceEmbedder.load(path, embedder.model)
    for one in (embedder, loaded):
        one.tune_prior(bounds=(1e-3, prior / 2))
    assert loaded.posterior_.temperature == embedder.posterior_.temperature < 1
    rewrite(path, "posterior", lambda content, _: content.pop("width"))  # of an earlier version
    assert LaplaceEmbedder.load(path, embedder.model).posterior_.temperature == 1


def test_tuning_the_prior_alone_leaves_a_temperature_that_was_given():
    embedder = small(hessian="positives", temperature=0.3)[0]
    embedder.tune_prior()
    assert embedder.posterior_.temperature == 0.3


def test_a_metric_sees_the_temperature_that_is_adopted():
    embedder, x, y = small(hessian="positives")
    seen = []

    def metric(embedding, _):
        seen.append(float(embedding.variance.mean()))
        return seen[-1]

    embedder.tune_prior("validation", loader=[(x, y)], metric=metric, bounds=(1e-3, 1e3))
    assert float(embedder(x).variance.mean()) == pytest.approx(max(seen), rel=1e-9)


# ---------------------------------------------------------------- refusals and warnings


@pytest.mark.parametrize("name", ["temperature", "prior_precision"])
@pytest.mark.parametrize(
    "value", [0, 0.0, -1, float("nan"), float("inf"), "cold", "", True, None, [1.0]]
)
def test_sizes_that_are_neither_auto_nor_a_positive_number_are_refused(name, value):
    with pytest.raises(InputError, match=name):
        Settings(**{name: value})
    with pytest.raises(InputError, match=name):
        LaplaceEmbedder(nn.Linear(2, 2), **{name: value})


@pytest.mark.parametrize("value", [1, 0.25, 16, "auto"])
def test_auto_and_positive_numbers_are_settings(value):
    assert Settings(temperature=value).temperature == value


def test_draws_that_are_mostly_noise_warn_and_nearer_ones_do_not():
    """At a mean squared distance of .5, for draws of embeddings and for those of the head."""
    plain, x, _ = small(distance="arccos", temperature=1.0, prior_precision=20.0)
    fits = {}
    for temperature in (2.0 ** (torch.arange(-48, 49) / 8)).tolist():
        hotter = plain.fitted_.with_temperature(temperature)
        embedder = LaplaceEmbedder.from_fitted(plain.model, plain.settings, hotter)
        fits[float(embedder(x).uncertainty.mean())] = embedder
    calm = fits[max(chord for chord in fits if chord < 0.49)]
    wild = fits[min(chord for chord in fits if chord > 0.51)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", WideDrawsWarning)
        calm(x).sample(200, 0)
        calm.sample(x, 200, 0)
        calm.draw(200, 0)(x)
        wild(x).sample(0)
    for sample in (
        lambda: wild(x).sample(200, 0),
        lambda: wild.sample(x, 200, 0),
        lambda: wild.draw(200, 0)(x),
    ):
        with pytest.warns(WideDrawsWarning, match=r"draws lie (0\.[5-9]|1)\d*.*their means"):
            sample()


def test_draws_of_vectors_never_warn():
    """They have no scale of their own."""
    embedder, x, _ = small(distance="euclidean", hessian="positives", temperature=1e6)
    with warnings.catch_warnings():
        warnings.simplefilter("error", WideDrawsWarning)
        embedder(x).sample(50, 0)
        embedder.draw(50, 0)(x)


def test_margins_are_those_of_a_loop():
    """Of classes of unequal size, in the units that the points have, for vectors and directions."""
    g = torch.Generator().manual_seed(3)
    labels = torch.tensor([2, 0, 1, 0, 2, 2, 1, 0, 2, 5, 5])
    z = torch.randn(2, 11, 3, generator=g, dtype=torch.float64)
    for spherical in (False, True):
        points = DrawnPoints(lambda t: z if t else z[:1], labels, spherical)
        at = nn.functional.normalize(z, dim=-1) if spherical else z
        found = points.margins(z)
        unit = (at - at[:1].mean(1)).abs().max()
        for s in range(2):
            for i in range(11):
                own, other = torch.inf, torch.inf
                for j in set(range(11)) - {i}:
                    apart = float((at[s, i] - at[s, j]).norm() / unit)
                    if labels[i] == labels[j]:
                        own = min(own, apart)
                    else:
                        other = min(other, apart)
                assert float(found[s, i]) == pytest.approx(other - own, abs=1e-6)


# ---------------------------------------------------------------- the same from other points


@cache
def digits_network() -> tuple[nn.Module, Tensor, Tensor]:
    x, y = digits()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))
    data = DataLoader(TensorDataset(x[:1000].float(), y[:1000]), 64, shuffle=True)
    train_embedder(network, data, ContrastiveLoss(), epochs=5, progress=False)
    return network.eval(), x.float(), y


def subsets(
    network: nn.Module, x: Tensor, y: Tensor, n: int, seeds: int, **how
) -> list[tuple[LaplaceEmbedder, Tensor]]:
    """Fits to random subsets of n points, and their rows."""
    found = []
    for seed in range(seeds):
        rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:n]
        found.append((quietly(LaplaceEmbedder(network, **how), x[rows], y[rows]), rows))
    return found


def test_the_size_of_a_posterior_hardly_depends_on_which_points_are_fitted():
    """Random subsets of 100 to 800 digits: it falls with their number, and is within 2 over all.

    Measured: 1.5, and 1.04 to 1.13 among four subsets of one size.
    """
    network, x, y = digits_network()
    medians, new, sizes = [], x[1400:], []
    for n in (100, 200, 400, 800):
        fits = subsets(network, x[:1400], y[:1400], n, 4)
        found = [float(embedder(new).uncertainty.median()) for embedder, _ in fits]
        assert max(found) / min(found) < 1.25, n
        medians.append(median(found))
        sizes += found
    assert medians == sorted(medians, reverse=True)
    assert max(sizes) / min(sizes) < 2


@pytest.mark.parametrize("distance", ["arccos", "euclidean"])
@pytest.mark.parametrize("source", ["fashion-mnist", "mnist"])
def test_images_have_one_size_whatever_the_number_of_points_and_draws_find_new_ones(
    real_data, source, distance
):
    """Subsets of 100 to 3,200 images: uncertainty of new ones falls, by 1.4 to 2.6.

    The network was trained on other images. Draws of heads lose at most .02 of the recall of new
    queries (.01 measured), searched among draws of the same head and among embeddings of the
    trained one. Where fitted points decide as if they were new, draws lose .02 to .5.
    """
    images, test = (load(source, split, real_data, limit) for split, limit in SPLITS)
    x, y = images.pixels(slice(None)).flatten(1), torch.as_tensor(images.labels)
    new, of_new = test.pixels(slice(None)).flatten(1), torch.as_tensor(test.labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    trained, rest = order[:3_000], order[3_000:]
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 16))
    batches = DataLoader(TensorDataset(x[trained], y[trained]), 64, shuffle=True)
    train_embedder(network, batches, ContrastiveLoss(), epochs=5, progress=False)
    hessian = "positives" if distance == "euclidean" else "fixed"
    how = {"distance": distance, "hessian": hessian}
    pool, classes, medians, lost = x[rest], y[rest], [], []
    for n in (100, 200, 400, 800, 1600, 3200):
        fits = subsets(network.eval(), pool, classes, n, 3, **how)
        found = [float(embedder(new).uncertainty.median()) for embedder, _ in fits]
        assert max(found) / min(found) < 1.6, n
        medians.append(median(found))
        lost.append(mean(lost_recall(e, pool[i], classes[i], new, of_new) for e, i in fits))
    assert max(medians) / min(medians) < (2.6 if distance == "arccos" else 1.8)
    assert all(b < 1.01 * a for a, b in pairwise(medians))
    assert max(lost) <= 0.02
    if distance == "arccos":  # as docs/posterior.md says why there is a temperature
        for n, least, most in ((100, 1.7, 1.9), (3200, 0.4, 0.45)):
            for embedder, rows in subsets(network, pool, classes, n, 3, temperature=1.0, **how):
                variance = embedder(new).uncertainty
                assert least < float(variance.median()) < most
                vary_less = float(variance.mean() / embedder(pool[rows]).uncertainty.mean())
                assert n > 100 or 1.15 < vary_less < 1.35


SPLITS = (("train", 7_000), ("test", 1_000))


@torch.no_grad()
def lost_recall(
    embedder: LaplaceEmbedder, items: Tensor, labels: Tensor, queries: Tensor, wanted: Tensor
) -> float:
    """The larger loss of recall@1 of eight draws, among draws and among the trained embeddings."""
    head, features = embedder.fitted_.jacobian, embedder.model[:-1]
    z, q = (embedder(part).mean for part in (items, queries))

    def found(a: Tensor, b: Tensor) -> float:
        if embedder.spherical:
            a, b = (nn.functional.normalize(v, dim=-1) for v in (a, b))
        return float((labels[torch.cdist(a, b).argmin(1)] == wanted).double().mean())

    heads = embedder.posterior_.sample(8, torch.Generator().manual_seed(1))
    drawn = [[head.forward_with(features(h), w[None])[0] for h in (items, queries)] for w in heads]
    alike = mean(found(b, a) for a, b in drawn)
    return found(q, z) - min(alike, mean(found(b, z) for _, b in drawn))


@pytest.mark.parametrize(
    "rows",
    [
        torch.arange(1000).repeat(2),
        torch.cat([torch.arange(1000), torch.arange(30)]),
        torch.cat([torch.arange(1000), torch.arange(1000, 1030)]),
        torch.arange(1000).flip(0),
    ],
    ids=["every row twice", "30 rows twice", "30 other rows", "another order"],
)
def test_a_few_more_rows_or_copies_leave_the_size_of_the_posterior(rows):
    """And so do copies that differ by rounding, as a network gives them in batches of other sizes.

    A posterior of twice as many points is as wide: its temperature is twice as high.
    """
    network, x, y = digits_network()
    once = quietly(LaplaceEmbedder(network), x[:1000], y[:1000])(x[1200:]).uncertainty
    g = torch.Generator().manual_seed(0)
    rounded = x[rows] * (1 + 1e-7 * torch.randn(len(rows), 1, generator=g))
    other = quietly(LaplaceEmbedder(network), rounded, y[rows])(x[1200:]).uncertainty
    ratio = float((other / once).median())
    assert 0.85 < ratio < 1 / 0.85

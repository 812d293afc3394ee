"""Weights that change after a fit, and rows that are no numbers: named errors, never in silence."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from pytorch_metric_learning.losses import ContrastiveLoss
from torch import nn

from laplace_metric import LaplaceEmbedder, OnlineLaplace
from laplace_metric.errors import FileFormatError, InputError, NonFiniteError
from laplace_metric.errors import WeightsChangedError as Changed
from laplace_metric.heads._fitted_weights import AT_ONCE
from laplace_metric.models import Precomputed

X = torch.randn(60, 8, generator=torch.Generator().manual_seed(0))
Y = torch.arange(60) % 4
STRUCTURES = ("diag", "kron", "full")


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def fit(model: nn.Module, **settings) -> LaplaceEmbedder:
    return LaplaceEmbedder(model, **settings).fit([(X, Y)], progress=False)


def load_others(model):
    model.load_state_dict({name: t + 1 for name, t in model.state_dict().items()})


def step(model, optimizer, **settings):
    model(X).square().sum().backward()
    optimizer(model.parameters(), lr=0.1, **settings).step()


def in_place(model):
    with torch.no_grad():
        model[2].bias[0] += 1


def another_parameter(model):
    model[2].weight = nn.Parameter(model[2].weight + 1)


def another_layer_inside(model):
    model[2].weight.data = model[2].weight.data * 2


CHANGES = {
    "load_state_dict": load_others,
    "SGD": lambda m: step(m, torch.optim.SGD),
    "foreach Adam": lambda m: step(m, torch.optim.Adam, foreach=True),
    "fused Adam": lambda m: step(m, torch.optim.Adam, fused=True),
    "in place": in_place,
    "replaced": another_parameter,
    "data": another_layer_inside,
    "in place, by data": lambda m: m[2].weight.data.add_(1),
    "double": lambda m: m.double(),
    "half": lambda m: m.to(torch.bfloat16),
    "to": lambda m: m.to("meta"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_weights_are_noticed_at_every_call(change, model, tmp_path):
    embedder = fit(model)
    index = embedder.index(X, progress=False)
    draw = embedder.draw(2)
    embedder(X)
    CHANGES[change](model)
    x = X.to(next(model.parameters()).dtype)
    calls = {
        "call": lambda: embedder(x),
        "uncertainties": lambda: embedder.uncertainties([x], progress=False),
        "distance": lambda: embedder.distance(x, x),
        "draw": lambda: embedder.draw(2),
        "drawn": lambda: draw(x),
        "activations": lambda: embedder.activations(x),
        "module": embedder.as_module,
        "tune_prior": embedder.tune_prior,
        "index": lambda: embedder.index(x, progress=False),
        "search": lambda: index.search(x, k=1),
        "save": lambda: embedder.save(tmp_path / "posterior"),
    }
    for call in calls.values():
        with pytest.raises(Changed, match=r"head '2' changed.*fit again"):
            call()
    assert not (tmp_path / "posterior").exists()


def test_the_error_counts_what_differs(model):
    embedder = fit(model)
    with torch.no_grad():
        model[2].weight[0, :3] += 0.5
    with pytest.raises(Changed, match=r"3 of 68.*differ.*0\.5"):
        embedder(X)


def test_values_that_are_put_back_are_the_fitted_ones(model):
    embedder = fit(model)
    expected, state = embedder(X).variance, copy.deepcopy(model.state_dict())
    in_place(model)
    with pytest.raises(Changed):
        embedder(X)
    model.load_state_dict(state)
    assert torch.equal(embedder(X).variance, expected)
    model.double().float()
    assert torch.equal(embedder(X).variance, expected)


def test_what_neither_counter_nor_sample_shows_is_noticed_when_saving_and_indexing(tmp_path):
    model = nn.Linear(8, 4000, bias=False)
    embedder = fit(model, structure="diag")
    embedder(X)
    model.weight.data[0, 1] += 1
    embedder(X)
    for call in (lambda: embedder.save(tmp_path / "p"), lambda: embedder.index(X, progress=False)):
        with pytest.raises(Changed, match="1 of 32000.*differ"):
            call()


def test_a_running_statistic_of_the_head_is_a_weight():
    torch.manual_seed(0)
    head = nn.Sequential(nn.Linear(16, 4), nn.BatchNorm1d(4))
    model = nn.Sequential(nn.Linear(8, 16), head).eval()
    embedder = fit(model, head=head)
    embedder(X)
    model.train()(X)
    with pytest.raises(Changed, match="running statistics"):
        embedder(X)


def test_tuning_refitting_and_training_go_on(model, tmp_path):
    embedder = fit(model)
    embedder.tune_prior()
    embedder(X)
    embedder.save(tmp_path / "p")
    LaplaceEmbedder.load(tmp_path / "p", model)(X)
    online = OnlineLaplace(model).fit([(X, Y)], ContrastiveLoss(), epochs=1, progress=False)
    online(X)
    with pytest.raises(Changed):
        embedder(X)
    embedder.fit([(X, Y)], progress=False)(X)
    copied = copy.deepcopy(embedder)
    in_place(copied.model)
    embedder(X)
    with pytest.raises(Changed):
        copied(X)


def test_draws_belong_to_the_fit_that_they_are_of(model):
    embedder = fit(model)
    draw = embedder.draw(2, seed=0)
    before = draw(X[:3])
    assert torch.equal(fit(model).draw(2, seed=0)(X[:3]), before)
    embedder.fit([(X, Y)], progress=False)  # to the same weights
    assert torch.equal(draw(X[:3]), before)
    model[0].weight.data.mul_(3)
    embedder.fit([(X, Y)], progress=False)
    with pytest.raises(Changed):
        draw(X[:3])
    embedder.draw(2, seed=0)(X[:3])


class Sums(nn.Module):
    """A function without weights."""

    def forward(self, x):
        return x @ x.new_ones(8, 4)


class Counting(nn.Module):
    """Counts its calls in a buffer, whatever its mode."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x


def ema(model, decay=0.9):
    """Weights of a running average take the place of the trained ones, but in the head."""
    average = [p.data * decay for p in model[0].parameters()]
    for parameter, value in zip(model[0].parameters(), average, strict=True):
        parameter.data = value


def another_layer(model):
    model[0] = nn.Linear(8, 16)


def another_value(model):
    with torch.no_grad():
        model[0].bias[3] = 7.0


BODY_CHANGES = {
    "in place": another_value,
    "by data": lambda m: m[0].weight.data.mul_(2),
    "copied by data": lambda m: m[0].weight.data.copy_(m[0].weight.data + 1e-3),
    "running average": ema,
    "load_state_dict": lambda m: m[0].load_state_dict(
        {n: t + 1 for n, t in m[0].state_dict().items()}
    ),
    "fused Adam": lambda m: step(m[:1], torch.optim.Adam, fused=True),
    "another layer": another_layer,
    "another parameter": lambda m: setattr(m[0], "bias", nn.Parameter(torch.zeros(16))),
    "initialised anew": lambda m: m[0].reset_parameters(),
    "statistics": lambda m: m.train()(X + 3),
    "normalisation": lambda m: nn.init.constant_(m[1].weight, 2.0),
    "pruned": lambda m: nn.utils.prune.l1_unstructured(m[0], "weight", 0.5),
}


@pytest.fixture
def deep() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)).eval()


@pytest.mark.parametrize("head", [None, "append"])
@pytest.mark.parametrize("change", BODY_CHANGES)
def test_weights_below_the_head_belong_to_the_fit(change, head, deep, tmp_path):
    embedder = fit(deep, head=head)
    index = embedder.index(X, progress=False)
    expected, state = embedder(X).mean, copy.deepcopy(deep.state_dict())
    embedder.save(tmp_path / "before")
    BODY_CHANGES[change](deep)
    calls = {
        "call": lambda: embedder(X),
        "search": lambda: index.search(X, k=1),
        "index": lambda: embedder.index(X, progress=False),
        "module": embedder.as_module,
        "save": lambda: embedder.save(tmp_path / "after"),
    }
    for call in calls.values():
        with pytest.raises(Changed, match=r"(parameter|buffer|no) '[01]\..*fit again"):
            call()
    with pytest.raises(FileFormatError, match=r"(parameter|buffer|no) '[01]\..*fit again"):
        LaplaceEmbedder.load(tmp_path / "before", deep)
    if change == "pruned":
        nn.utils.prune.remove(deep[0], "weight")
    deep.load_state_dict(state)
    assert torch.equal(embedder(X).mean, expected)
    assert torch.equal(LaplaceEmbedder.load(tmp_path / "before", deep)(X).mean, expected)


def test_an_untrained_model_with_the_right_head_is_refused(model, tmp_path):
    fit(model).save(tmp_path / "posterior")
    untrained = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    untrained[2].load_state_dict(model[2].state_dict())
    with pytest.raises(FileFormatError, match=r"although head '2'.*'0\.weight'"):
        LaplaceEmbedder.load(tmp_path / "posterior", untrained)
    wider = nn.Sequential(nn.Linear(8, 16, bias=False), nn.ReLU(), model[2])
    wider[0].weight = model[0].weight
    with pytest.raises(FileFormatError, match=r"model.*no '0\.bias'"):
        LaplaceEmbedder.load(tmp_path / "posterior", wider)


def test_moves_that_change_no_value_raise_no_alarm(deep, tmp_path):
    embedder = fit(deep, head="append")
    embedder.save(tmp_path / "posterior")
    expected = embedder(X).mean
    for dtype in (torch.float64, torch.bfloat16, torch.float16, torch.float32):
        torch.manual_seed(0)
        moved = copy.deepcopy(deep).to(dtype)
        loaded = LaplaceEmbedder.load(tmp_path / "posterior", moved)
        torch.testing.assert_close(loaded(X.to(dtype)).mean, expected, rtol=0.05, atol=0.05)
    deep.double()
    torch.testing.assert_close(embedder(X.double()).mean, expected)
    deep.float()
    deep.load_state_dict(copy.deepcopy(deep.state_dict()))
    deep[1].num_batches_tracked += 1
    deep.train().requires_grad_(False)
    assert torch.equal(embedder(X).mean, expected)
    deep[0].weight.data = deep[0].weight.data.clone()
    assert torch.equal(embedder(X).mean, expected)
    other = deep.half()
    with torch.no_grad():
        other[0].weight *= 1.05
    with pytest.raises(FileFormatError, match="'0.weight'.*other values"):
        LaplaceEmbedder.load(tmp_path / "posterior", other)


def test_wrapped_in_another_module_it_is_the_same_model(model, tmp_path):
    embedder = fit(model, head="append")
    embedder.save(tmp_path / "posterior")
    loaded = LaplaceEmbedder.load(tmp_path / "posterior", nn.Sequential(model))
    assert torch.equal(loaded(X).variance, embedder(X).variance)


def test_what_a_model_moves_itself_is_not_compared(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), Counting(), nn.Linear(16, 4))
    embedder = fit(model)
    embedder(X)
    embedder(X)
    embedder.save(tmp_path / "posterior")
    LaplaceEmbedder.load(tmp_path / "posterior", model)(X)
    in_place(model)
    with pytest.raises(Changed):
        embedder(X)


def test_without_weights_below_the_head_nothing_is_compared(tmp_path):
    embedder = fit(Sums(), head="append")
    embedder.save(tmp_path / "posterior")
    LaplaceEmbedder.load(tmp_path / "posterior", Sums())(X)
    vectors = LaplaceEmbedder.from_embeddings(X, Y)
    vectors.save(tmp_path / "vectors")
    LaplaceEmbedder.load(tmp_path / "vectors")(X)


def test_a_write_that_no_counter_shows_is_noticed_within_a_few_calls():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(40)), nn.Linear(8, 4))
    embedder = fit(model)
    embedder(X)
    model[30].weight.data.mul_(1.5)

    def ask_often():
        for _ in range(80 // AT_ONCE + 1):
            embedder(X)

    with pytest.raises(Changed, match="'30.weight'.*other values"):
        ask_often()


def calls_of(embedder: LaplaceEmbedder):
    return {
        "call": lambda x: embedder(x).variance,
        "uncertainties": lambda x: embedder.uncertainties([X, x], progress=False),
        "distance": lambda x: torch.stack([*vars(embedder.distance(x, X)).values()][:2]),
        "distance, other side": lambda x: embedder.distance(X, x, shared_weights=False).variance,
        "draw": lambda x: embedder.sample(x, 2),
        "index": lambda x: embedder.index(x, progress=False).items.encoded.trace,
        "search": lambda x: embedder.index(X, progress=False).search(x, k=2).distance_sd,
    }


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("distance", ["arccos", "euclidean"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_rows_that_are_no_numbers_are_counted(structure, distance, bad, model):
    embedder = fit(model, structure=structure, distance=distance, hessian="positives")
    x = X.clone()
    x[[2, 5, 7], 3] = bad
    for call in calls_of(embedder).values():
        with pytest.raises(NonFiniteError, match="3 of 60.*embeddings.*NaN or infinity"):
            call(x)


LONG = torch.randn(600, 8, generator=torch.Generator().manual_seed(1))
LONG_Y = torch.arange(600) % 4


def in_batches(x, size):
    return [(x[i : i + size], LONG_Y[i : i + size]) for i in range(0, len(x), size)]


ROWS_OF = {
    "fit": lambda m, x: LaplaceEmbedder(m).fit(x, LONG_Y, progress=False),
    "fit, array": lambda m, x: LaplaceEmbedder(m).fit(x.numpy(), LONG_Y.tolist(), progress=False),
    "fit, loader": lambda m, x: LaplaceEmbedder(m).fit(in_batches(x, 50), progress=False),
    "fit, pairs of batches": lambda m, x: LaplaceEmbedder(m, pairs="batch").fit(
        in_batches(x, 50), progress=False
    ),
    "fit, vectors": lambda _, x: LaplaceEmbedder.from_embeddings(x, LONG_Y),
    "fit, vectors in batches": lambda _, x: LaplaceEmbedder(Precomputed(8), head="append").fit(
        x, LONG_Y, progress=False
    ),
    "call": lambda m, x: fit(m)(x),
    "epistemic": lambda m, x: fit(m)(x).epistemic,
    "uncertainties": lambda m, x: fit(m).uncertainties(in_batches(x, 70), progress=False),
    "epistemic of a loader": lambda m, x: fit(m).uncertainties(
        in_batches(x, 70), kind="epistemic", progress=False
    ),
    "distance": lambda m, x: fit(m).distance(LONG, x),
    "draw": lambda m, x: fit(m).sample(x, 2),
    "index": lambda m, x: fit(m).index(x, progress=False),
    "search": lambda m, x: fit(m).index(X, progress=False).search(x, k=1),
    "validation": lambda m, x: fit(m).tune_prior(
        "validation",
        loader=in_batches(x, 90),
        metric=lambda e, _: float(e.variance.sum()),
        progress=False,
    ),
}


@pytest.mark.filterwarnings("ignore:.*of the curvature was negative")
@pytest.mark.parametrize("row", [590, 3])
@pytest.mark.parametrize("door", ROWS_OF)
def test_a_row_that_is_no_number_is_that_of_the_call(door, row, model):
    x = LONG.clone()
    x[row, 2] = torch.nan
    x[row - 1, 5] = torch.inf
    with pytest.raises(NonFiniteError, match=f"rows {row - 1}, {row} "):
        ROWS_OF[door](model, x)


def test_rows_without_a_direction_are_named():
    x = LONG.clone()
    x[590] = 0
    directions = partial(LaplaceEmbedder.from_embeddings, labels=LONG_Y, distance="arccos")
    doors = {
        "fit": lambda: directions(x),
        "index": lambda: directions(LONG).index(x, progress=False),
        "call": lambda: directions(LONG)(x),
    }
    for door in doors.values():
        with pytest.raises(InputError, match=r"exactly zero.*row 590 "):
            door()


def test_of_weights_that_are_no_numbers_all_rows_are_told(model):
    with torch.no_grad():
        model[0].weight.fill_(torch.nan)
    with pytest.raises(NonFiniteError, match="all 60 rows.*weights"):
        fit(model)


@pytest.mark.parametrize("kind", ["model", "append", "embeddings"])
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("distance", ["arccos", "euclidean"])
def test_no_scale_gives_a_number_that_is_none(kind, structure, distance, model):
    """A named error, or an answer that is finite."""
    how = {"structure": structure, "distance": distance, "hessian": "positives"}
    model[0].bias.data.zero_()  # so that the output has the scale of the input
    model[2].bias.data.zero_()
    if kind == "embeddings":
        embedder = LaplaceEmbedder.from_embeddings(X, Y, **how)
    else:
        embedder = fit(model, head="append" if kind == "append" else None, **how)
    refused = answered = 0
    for power in (-45, -38, -30, -22, -19, -13, -11, 0, 11, 15, 19, 20, 30, 38):
        for call in calls_of(embedder).values():
            try:
                answer = call(X * 10.0**power)
            except InputError:
                refused += power != 0
                continue
            assert bool(answer.isfinite().all())
            answered += power == 0
    assert answered == 7, "all of the scale of the fit"
    assert refused > 10


def test_embeddings_without_a_direction_are_counted_before_a_fit():
    x = X.clone()
    x[[1, 4]] = 0
    with pytest.raises(InputError, match="2 of 60.*embeddings.*exactly zero"):
        LaplaceEmbedder.from_embeddings(x, Y, distance="arccos")
    with pytest.raises(InputError, match="60 of 60.*embeddings.*shorter.*1e-12"):
        LaplaceEmbedder.from_embeddings(X * 1e-30, Y, distance="arccos")
    with pytest.raises(NonFiniteError, match=r"overflow torch.float32: .*up to .*e\+20 long"):
        LaplaceEmbedder.from_embeddings(X * 1e20, Y, distance="arccos")
    embedder = LaplaceEmbedder.from_embeddings(X, Y, distance="arccos")
    with pytest.raises(InputError, match="2 of 60.*embeddings.*exactly zero"):
        embedder(x)
    euclidean = LaplaceEmbedder.from_embeddings(x, Y, distance="euclidean", hessian="positives")
    assert bool(euclidean(x).variance.isfinite().all())


@pytest.mark.parametrize("length", [1.0, 1e-6, 1e-11])
def test_embeddings_are_refused_below_the_shortest_length_and_not_before(length):
    x = length * torch.nn.functional.normalize(X.double())
    embedder = LaplaceEmbedder.from_embeddings(x, Y, distance="arccos")
    assert bool(embedder(x).variance.isfinite().all())

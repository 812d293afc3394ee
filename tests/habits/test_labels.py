"""Labels that are no classes are asked about wherever labels are read."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.cluster import DBSCAN

from laplace_metric import Guard, LaplaceEmbedder
from laplace_metric.errors import InputError, LabelError, LaplaceMetricWarning
from laplace_metric.search.estimators import LaplaceMetricTransformer, MatchClassifier

N = 120


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    y = np.arange(N) % 3
    g = np.random.default_rng(0)
    return (4 * np.eye(6)[y] + g.normal(size=(N, 6))).astype("float32")


@pytest.mark.parametrize("door", ["evaluate", "calibrate"])
def test_queries_of_noise_alone_are_refused(door, x):
    guard, noise = Guard(x, np.arange(N) % 3, precision=0.3), np.full(N, -1)
    with pytest.raises(LabelError, match=r"labels is -1.*\(120 of 120\).*no class"):
        getattr(guard, door)(x, noise)
    with pytest.raises(LabelError, match=r"labels is -1.*\(120 of 120\).*no class"):
        guard.index.evaluate(x, noise)


def doors(x, y):
    """Every door where labels come in, as functions of the labels."""
    embedder = LaplaceEmbedder.from_embeddings(x, y)
    index = embedder.index(x, y, progress=False)
    batches = [slice(0, 50), slice(50, N)]
    return {
        "from_embeddings": lambda labels: LaplaceEmbedder.from_embeddings(x, labels),
        "fit": lambda labels: LaplaceEmbedder(torch.nn.Linear(6, 3)).fit(x, labels, progress=False),
        "fit of a loader": lambda labels: LaplaceEmbedder(torch.nn.Linear(6, 3)).fit(
            [(x[part], labels[part]) for part in batches], progress=False
        ),
        "index": lambda labels: embedder.index(x, labels, progress=False),
        "index of a loader": lambda labels: embedder.index(
            [(x[part], labels[part]) for part in batches], progress=False
        ),
        "cross_index": lambda labels: embedder.cross_index(x, labels, progress=False),
        "add": lambda labels: embedder.index(x, y, progress=False).add(x, labels),
        "calibrate": lambda labels: index.calibrate(x, labels),
        "evaluate": lambda labels: index.evaluate(x, labels),
        "Guard": lambda labels: Guard(x, labels, precision=0.3),
        "Guard, held out": lambda labels: Guard(x, y, held_out=(x, labels), precision=0.3),
    }


DOORS = list(doors(np.random.default_rng(0).normal(size=(N, 6)), np.arange(N) % 3))
quiet = pytest.mark.filterwarnings("ignore::laplace_metric.errors.LaplaceMetricWarning")


def names(y) -> list:
    return [f"class {label}" for label in y]


@quiet
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", [list, lambda y: np.array(y, dtype=object), pd.Series])
def test_labels_of_numbers_and_names_are_said_to_be_mixed(door, kind, x):
    y = [*names(np.arange(N - 1) % 3), 2]
    said = r"labels.* mixed, 'class \d' \(str\) in row \d+ and 2 \(int\) in row \d+: pass"
    with pytest.raises(InputError, match=said):
        doors(x, np.arange(N) % 3)[door](kind(y))


@quiet
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA, pd.NaT, np.datetime64("NaT")])
def test_a_missing_label_is_named_by_its_row(door, missing, x):
    y = names(np.arange(N) % 3)
    bad = list(y)
    bad[3] = bad[70] = missing
    rows = r"missing in row(s 3, 70 \(2 of 120\)| 3 \(1 of 50\))"  # of the batch, from a loader
    with pytest.raises(LabelError, match=rows):
        doors(x, y)[door](bad)


@quiet
@pytest.mark.parametrize("door", DOORS)
def test_missing_whole_numbers_are_named_by_their_row(door, x):
    y = np.arange(N) % 3
    bad = y.astype(float)
    bad[3] = np.nan
    with pytest.raises(LabelError, match=r"missing.*row 3.*1 of (120|50)"):
        doors(x, y)[door](bad)
    with pytest.raises(LabelError, match=r"missing.*row 3.*1 of (120|50)"):
        doors(x, y)[door](torch.from_numpy(bad))
    series = pd.Series(y, dtype="Int64")
    series[3] = pd.NA
    with pytest.raises(LabelError, match=r"missing.*row 3.*1 of (120|50)"):
        doors(x, y)[door](series)


@quiet
@pytest.mark.parametrize("door", DOORS)
def test_noise_of_a_clustering_is_asked_about(door, x):
    y = np.arange(N) % 3
    noisy = y.copy()
    noisy[[5, 77]] = -1
    of_queries = door in ("calibrate", "evaluate", "Guard, held out")
    way_out = "another label that no item has" if of_queries else r"labels.astype\(str\)"
    message = rf"-1 in rows 5, 77 \(2 of 120\): scikit-learn marks noise.*{way_out}"
    with pytest.raises(LabelError, match=message):
        doors(x, y)[door](noisy)
    with pytest.raises(LabelError, match=message):
        doors(x, y)[door](torch.from_numpy(noisy).int())


@quiet
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    "classes", [(-1, 1), (-1, 0), (-2, -1, 0), (-1, -3, 5), ("-1", "0", "1"), (1, 2, 3)]
)
def test_classes_that_are_minus_one_are_classes(door, classes, x):
    y = np.array(classes)[np.arange(N) % len(classes)]
    doors(x, y)[door](y)


@quiet
def test_the_noise_of_dbscan_is_refused_and_can_be_left_out_or_named(x):
    x = np.where(np.arange(N)[:, None] < 110, x / 8 + 4 * np.eye(6)[np.arange(N) % 3], x)
    y = DBSCAN(eps=1.5, min_samples=5).fit_predict(x)
    assert set(y) >= {-1, 0, 1, 2}
    with pytest.raises(LabelError, match="scikit-learn marks noise"):
        Guard(x, y)
    there = y >= 0
    assert len(Guard(x[there], y[there], precision=0.3).index) == there.sum()
    assert "-1" in Guard(x, y.astype(str), precision=0.3).index.labels.tolist()


@quiet
def test_an_index_with_a_class_of_minus_one_takes_more_of_it(x):
    y = np.where(np.arange(N) % 2, 1, -1)
    index = LaplaceEmbedder.from_embeddings(x, y).index(x, y, progress=False)
    more = np.array([-1, 1, 2])[np.arange(N) % 3]
    index.add(x, more)
    assert len(index.labelled_hits(x, more).known) == N


@pytest.mark.parametrize("estimator", [MatchClassifier, LaplaceMetricTransformer])
def test_estimators_ask_about_noise(estimator, x):
    y = np.arange(N) % 3
    with pytest.raises(LabelError, match="y is -1.*row 4 "):
        estimator().fit(x, np.where(np.arange(N) == 4, -1, y))
    assert len(estimator().fit(x, np.where(y == 0, -1, 1)).classes_) == 2


@pytest.mark.filterwarnings("ignore::laplace_metric.errors.NegativeCurvatureWarning")
def test_labels_that_all_differ_are_told(x):
    ids = np.arange(N)
    with pytest.warns(LaplaceMetricWarning, match="all 120 labels.*ids.*row numbers"):
        embedder = LaplaceEmbedder.from_embeddings(x, ids)
    with pytest.warns(LaplaceMetricWarning, match="all 120 labels"):
        LaplaceEmbedder(torch.nn.Linear(6, 3)).fit([(x, names(ids))], progress=False)
    index = embedder.index(x, ids, progress=False)
    assert "120 items, each of another class: are the labels ids?" in str(index)
    with pytest.raises(InputError, match="all 120 labels"):
        Guard(x, ids)


@pytest.mark.parametrize("named", [False, True])
def test_held_out_labels_of_other_classes_are_told(named, x):
    y = np.arange(N) % 3
    mine, theirs = (names(y), names(y + 7)) if named else (y, y + 7)
    index = LaplaceEmbedder.from_embeddings(x, mine).index(x, mine, progress=False)
    first = ("'class 7'", "'class 0'") if named else ("7", "0")
    message = f"none of the 120 queries.*they have {first[0]}, .*the index has {first[1]}"
    with pytest.raises(LabelError, match=message):
        index.calibrate(x[:, ::-1].copy(), theirs)
    with pytest.raises(LabelError, match=message):
        Guard(x, mine, held_out=(x[:, ::-1].copy(), theirs))
    assert index.evaluate(x[:, ::-1].copy(), theirs).known_share == 0


@pytest.mark.parametrize("text", [False, True])
def test_ids_of_another_type_are_named(text, x):
    ids = [f"{row}" for row in range(N)] if text else list(range(N))
    index = LaplaceEmbedder.from_embeddings(x, np.arange(N) % 3).index(x, ids=ids, progress=False)
    other = [3] if text else ["3"]
    kinds = ("strings", "numbers") if text else ("numbers", "strings")
    message = f"not in the index, whose ids are {kinds[0]}: pass {kinds[0]}, not {kinds[1]}"
    with pytest.raises(InputError, match=message):
        index.remove(other)
    with pytest.raises(InputError, match=message):
        index.calibrate(x, matches=[other] * N)
    with pytest.raises(InputError, match=r"ids.*missing.*row 1.*1 of 2"):
        index.add(x[:2], ids=["a", None])

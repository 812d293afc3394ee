"""Guards that answer with a coarser group of labels before they abstain."""

from __future__ import annotations

import copy
import pickle
import warnings
from functools import cache

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from laplace_metric import Guard, GuardClassifier
from laplace_metric import io as files
from laplace_metric.calibration import CalibrationQueries, Guarantee, LevelRule, Rule
from laplace_metric.calibration.guarantees._left_over import left_over, share_of_run
from laplace_metric.calibration.guarantees._test_sequences import Tests as Sequences
from laplace_metric.calibration.labels._label_shares import LabelShares
from laplace_metric.calibration.labels._levels import Levels
from laplace_metric.errors import (
    FewQueriesWarning,
    FileFormatError,
    InputError,
    LaplaceMetricWarning,
    StaleCalibrationWarning,
)
from laplace_metric.guard import GUARD

pytestmark = pytest.mark.usefixtures("quick")
CLASSES, GROUPS = 6, 3
MEANS = np.repeat(6 * np.eye(GROUPS, 5), 2, 0) + 1.6 * np.eye(CLASSES, 5)
NAMES = np.array(["boot", "sneaker", "coat", "shirt", "bag", "purse"])
KIND = {"boot": "shoes", "sneaker": "shoes", "coat": "clothes", "shirt": "clothes"}
KIND |= {"bag": "bags", "purse": "bags"}
WORN = {name: "carried" if kind == "bags" else "worn" for name, kind in KIND.items()}


def drawn(seed, n):
    """Points of six classes in three groups; the two of a group overlap."""
    g = np.random.default_rng(seed)
    y = g.integers(0, CLASSES, n)
    return (MEANS[y] + 0.8 * g.normal(size=(n, 5))).astype(np.float32), NAMES[y]


ITEMS, NEW = drawn(0, 500), drawn(1, 600)


@cache
def made():
    return Guard(*ITEMS, coarser=[KIND, WORN])


@cache
def held():
    return Guard(*ITEMS, held_out=drawn(2, 1200), coarser=KIND)


def test_answers_are_at_the_finest_level_that_is_sure_enough_and_say_which():
    guard = made()
    answers = guard.ask(NEW[0])
    level, rule = answers.level, guard.rule
    assert isinstance(rule, LevelRule)
    assert set(level) <= {0, 1, 2, None}
    assert {0, 1} <= set(level)
    assert ((level == np.array(None)) == ~answers.answered).all()
    for at, names in enumerate((set(NAMES), set(KIND.values()), set(WORN.values()))):
        assert set(answers.label[level == at]) <= names
    found = guard.index.search(NEW[0], 1)
    fine = Rule.at(rule.rules[0].value)(found)
    assert np.array_equal(fine.answered, level == 0)
    assert np.array_equal(fine.label[fine.answered], answers.label[level == 0])
    truth = np.array(
        [Levels.read([KIND, WORN], NAMES).names(NEW[1].tolist(), at) for at in range(3)]
    )
    given = answers.answered
    right = truth[level[given].astype(int), np.flatnonzero(given)] == answers.label[given]
    assert right.mean() > 0.9
    assert given.mean() > guard.at(0.9, coarser=False).ask(NEW[0]).answered.mean() + 0.1
    assert list(answers.to_pandas())[-1] == "level"
    assert f"({(level == 0).sum()} at level 0, " in repr(answers)
    assert answers[3:9].level.tolist() == level[3:9].tolist()
    assert answers[3][2] == answers.reason[3]


def test_a_group_has_the_sum_of_the_probabilities_of_its_labels():
    found = made().index.search(NEW[0], 1)
    classes = found.classes.tolist()
    dense = np.zeros((len(NEW[0]), CLASSES))
    np.add.at(dense, (found.shares.query, found.shares.code), found.shares.probability)
    assert np.allclose(dense.max(1), found.label_probability)
    levels = Levels.read(KIND, classes)
    names, code = levels.coded(classes, 1)
    summed = np.stack([dense[:, code == g].sum(1) for g in range(GROUPS)], 1)
    group, p = found.shares.answers(code, len(dense))
    assert np.allclose(p, summed.max(1))
    assert np.array_equal(group, summed.argmax(1))
    answers = made().ask(NEW[0])
    at = answers.level == 1
    assert np.allclose(answers.probability[at], p[at])
    assert answers.label[at].tolist() == [names[g] for g in group[at]]
    nobody = LabelShares(np.zeros(0, int), np.zeros(0, int), np.zeros(0))
    assert nobody.answers(code, 2)[0].tolist() == [-1, -1]


def test_a_level_is_tested_by_the_queries_that_finer_ones_leave():
    guard = held()
    rule, calibration = guard.rule, guard.calibration
    fine = calibration.queries("label")
    own = rule.rules[0]
    assert own.confidence == 0.975
    alone = Rule.guaranteeing(fine, rule.guarantee.at_level(0.025))
    below = fine.decided[fine.decided < alone.value].max()
    assert below < own.value <= alone.value
    answered = fine.decided[:, 0] >= own.value
    second = rule.rules[1]
    assert second.n_tested == len(fine) - answered.sum()
    assert second.confidence == pytest.approx(1 - 0.025 * share_of_run(1))
    assert own.coverage == pytest.approx(answered.mean())
    assert rule.coverage == pytest.approx(own.coverage + second.coverage)
    assert rule.theorem is not None
    assert rule.proven
    assert not made().rule.proven
    with pytest.raises(InputError, match=r"rule\.rules\[level\]"):
        rule.rates()
    for refused in (rule.passed, rule.export, rule.save):
        with pytest.raises(InputError, match="levels"):
            refused("file")


def test_the_sequences_are_numbered_and_their_shares_sum_to_one():
    assert sum(map(share_of_run, range(80))) == pytest.approx(1)
    p = np.linspace(1, 0, 401)[:400]
    right = np.ones(400, bool)
    right[60:75] = False  # the first sequence ends here; a later one begins
    grid = np.linspace(0.001, 0.999, 400)
    sequences = Sequences.of(p, right, grid)
    assert sequences.lowest(0.9, 0.05).run == 2
    assert Sequences.of(p, p > -1, grid).lowest(0.9, 0.05).run == 1


def test_wrong_answers_at_which_a_sequence_ends_count_as_wrong_at_the_next_level():
    p = np.concatenate([np.linspace(1, 0.6, 400), np.full(6, 0.5), np.linspace(0.4, 0.1, 40)])
    right = np.concatenate([np.ones(400, bool), np.arange(6) < 2, np.zeros(40, bool)])
    n = len(p)
    queries = CalibrationQueries.of_answers(
        p,
        right,
        np.ones(n, bool),
        grid=np.linspace(0, 1, 400),
        abstained=np.zeros(n, bool),
        cross_fitted=False,
    )
    asked = Guarantee("precision", 0.985, of="label")
    after = left_over(queries, asked, Rule.guaranteeing(queries, asked).value)
    assert after.value == np.nextafter(0.5, 1)
    assert np.array_equal(after.left, p < 0.6)
    assert np.flatnonzero(after.spent).tolist() == [402, 403, 404, 405]


def test_it_prints_saves_loads_and_moves_to_another_precision(tmp_path):
    guard = made()
    assert "of the answers of each level at least 90% are right as given" in repr(guard)
    assert "90% right by level" in repr(guard)
    assert "of the answers of each level, as given, all at once" in str(guard.rule)
    guard.save(tmp_path / "guard")
    again = Guard.load(tmp_path / "guard")
    assert again.coarser == guard.coarser
    ours, theirs = guard.ask(NEW[0]), again.ask(NEW[0])
    assert ours.label.tolist() == theirs.label.tolist()
    assert ours.level.tolist() == theirs.level.tolist()
    assert guard.at(0.8).coarser is guard.coarser
    assert guard.at(0.8, coarser=False).rule.value == guard.index.guarantee(precision=0.8).value
    one = guard.at(0.9, coarser=KIND)
    assert len(one.rule.levels) == 2
    assert str(one.rule) == str(guard.index.guarantee_by_level(0.9, KIND))
    assert guard.rule is guard.rule  # computed once
    groups = [KIND[name] for name in ITEMS[1]]
    for listed in (groups, np.array(groups), [groups]):  # of each item
        assert guard.at(0.9, coarser=listed).coarser == one.coarser


def test_outcomes_are_reported_by_level():
    report = made().evaluate(*NEW)
    answers = made().ask(NEW[0])
    assert report.coverage == pytest.approx(answers.answered.mean())
    for at, (n, right, lower) in report.levels.items():
        assert n == (answers.level == at).sum()
        assert lower <= right / max(n, 1)
    assert (
        sum(right for _, right, _ in report.levels.values()) == report.right[report.answered].sum()
    )
    shoes = next(one for one in report.classes if one.name == "shoes")
    assert (shoes.level, shoes.given) == (1, (answers.label == "shoes").sum())
    kinds = np.array([KIND[name] for name in NEW[1]])
    assert shoes.queries == (kinds == "shoes").sum()
    assert "'shoes' (level 1)" in str(report)
    levels = [one.level for one in report.classes]
    assert levels == sorted(levels)  # the labels first, each with its level
    label = next(one for one in report.classes if one.level == 0)
    assert f"{label.name!r} (level 0)" in str(report)
    assert "level 1" in repr(report)


def test_open_set_queries_are_wrong_at_every_level():
    x, y = drawn(5, 700)
    guard = Guard(*ITEMS, held_out=(x, np.where(y == "purse", "clutch", y)), coarser=KIND)
    shares = guard.calibration.shares
    assert (shares.truth < 0).sum() == (~guard.calibration.known).sum() > 50
    queries = guard.calibration._of_groups(guard.calibration.queries(), np.zeros(CLASSES, np.intp))
    assert np.array_equal(queries.relevant[:, 0] == 1, guard.calibration.known)


def test_a_changed_gallery_is_told_and_a_new_class_has_no_group():
    guard = copy.deepcopy(made())
    guard.remove(np.arange(20))
    assert guard.rule.gallery.covered
    assert all(rule.gallery.changed == 20 for rule in guard.rule.rules.values())
    with pytest.warns(StaleCalibrationWarning):
        guard.add(drawn(6, 20)[0] + 9, ["hat"] * 20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LaplaceMetricWarning)
        answers = guard.ask(drawn(6, 5)[0] + 9)
    assert set(answers.label) <= {*NAMES, *KIND.values(), *WORN.values(), None, "hat"}


@pytest.mark.parametrize(
    ("coarser", "said"),
    [
        ("kind", "coarser is a str: pass a list of levels"),
        (3, "coarser is a int: pass a list of levels"),
        ([], "coarser is empty"),
        ([{}], "level 1 is empty"),
        ({**KIND, "boot": None}, r"the group of label 'boot' is missing"),
        ({**KIND, "boot": float("nan")}, r"the group of label 'boot' is missing"),
        ({**KIND, "boot": " "}, "the group of label 'boot' is an empty text: name it"),
        ({**KIND, "boot": ["a"]}, "the group of label 'boot' is a list: name groups by"),
        ({**KIND, "boot": 3}, "by strings and by numbers: use one kind"),
        ({"boot": "shoes"}, r"no group of 5 labels \('bag', 'coat', 'purse', ...\)"),
        ({1: "a", 2: "b"}, "Labels are of type str, those of the mapping int"),
        ([KIND, "shoes"], "levels and single groups"),
        (["shoes"] * 7, "7 entries for 500 items"),
        ([WORN, KIND], "level 2 is finer than level 1: pass levels from fine to coarse"),
        (
            [KIND, {**WORN, "boot": "carried"}],
            "group 'shoes' of level 1 is in two groups of level 2, ",
        ),
        ({name: name.upper() for name in NAMES}, "as many groups as the labels, and is no coarser"),
        ([KIND, {k: v + "!" for k, v in KIND.items()}], "as many groups as level 1"),
    ],
)
def test_levels_that_are_none_are_refused_with_what_to_do(coarser, said):
    with pytest.raises(InputError, match=said):
        made().at(0.9, coarser=coarser)
    with pytest.raises(InputError, match=said):
        Guard(*ITEMS, coarser=coarser)


def test_a_label_in_two_groups_is_named_with_its_items():
    groups = [KIND[name] for name in ITEMS[1]]
    first, other = np.flatnonzero(ITEMS[1] == "boot")[:2]
    groups[other] = "clothes"
    told = rf"'boot' is in two groups, 'shoes' \(item {first}\) and 'clothes' \(item {other}\)"
    with pytest.raises(InputError, match=told):
        made().at(0.9, coarser=groups)
    with pytest.raises(InputError, match="mapping.*label to group"):
        made().calibration.guarantee_by_level(0.9, groups)


def test_one_group_of_everything_is_warned_of_and_what_no_level_has_is_refused():
    with pytest.warns(LaplaceMetricWarning, match=r"labels.*one group, 'all'"):
        made().at(0.9, coarser=dict.fromkeys(NAMES, "all"))
    with pytest.warns(FewQueriesWarning, match="guaranteed.*any level"):
        guard = made().at(0.9999)
    with pytest.raises(InputError, match=r"level 0: .*; level 1: "):
        guard.ask(NEW[0])
    with pytest.raises(InputError, match="by_class=True.*coarser="):
        made().at(0.9, by_class=True)
    with pytest.raises(InputError, match="by_class=True.*coarser="):
        Guard(*ITEMS, coarser=KIND, by_class=True)
    with pytest.raises(AttributeError, match=r"guard\.at\(precision, coarser=levels\)"):
        made().guarantee_by_level(0.9)


def test_several_views_of_a_thing_are_answered_at_one_level():
    x, y = drawn(2, 1200)
    views, of = np.repeat(x, 2, 0), np.repeat(np.arange(1200), 2)
    views = views + np.random.default_rng(0).normal(0, 0.3, views.shape).astype(np.float32)
    guard = Guard(*ITEMS, held_out=(views, y[of]), of=of, coarser=KIND)
    asked, ids = np.repeat(NEW[0], 2, 0), np.repeat(np.arange(600), 2) + 10
    answers = guard.ask(asked, of=ids)
    assert answers.query_ids.tolist() == list(range(10, 610))
    assert {0, 1} <= set(answers.level)
    report = guard.evaluate(asked, NEW[1][ids - 10], of=ids)
    assert len(report) == 600
    assert report.lower > 0.9
    assert [n for n, _, _ in report.levels.values()] == [
        (answers.level == level).sum() for level in (0, 1)
    ]
    with pytest.raises(InputError, match="several views.*thing"):
        guard.ask(NEW[0])


def test_answers_among_some_items_have_levels_and_say_so():
    some = ITEMS[1] != "purse"
    with pytest.warns(StaleCalibrationWarning, match="the whole gallery"):
        answers = made().ask(NEW[0], among=some)
    assert answers.among is not None
    assert {0, 1} <= set(answers.level)
    assert "purse" not in set(answers.label)


def test_a_label_that_no_item_has_is_wrong_at_every_level():
    hidden = np.where(NEW[1] == "purse", "clutch", NEW[1])
    report = made().evaluate(NEW[0], hidden)
    assert not report.right[hidden == "clutch"].any()
    assert report.answered[hidden == "clutch"].any()
    with pytest.raises(InputError, match="group.*'boot'.*missing"):
        made().index.guarantee_by_level(0.9, {**KIND, "boot": None})
    with pytest.raises(TypeError, match="coarser=levels"):
        GuardClassifier(coarser=KIND)
    with pytest.raises(TypeError, match="coarser=.*groups.*labels"):
        Guard(*ITEMS, hierarchy=KIND)


def test_simulated_open_set_queries_are_wrong_at_every_level():
    guard = Guard(*ITEMS, held_out=drawn(2, 600), coarser=KIND, open_set_fraction=0.2)
    calibration = guard.calibration
    assert np.array_equal(calibration.shares.truth >= 0, calibration.known)
    groups = guard.coarser.coded(sorted(KIND), 1)[1]
    queries = calibration._of_groups(calibration.queries(), groups)
    assert not queries.relevant[~calibration.known, 0].any()
    assert queries.relevant[calibration.known, 0].mean() > 0.9


def test_whole_numbers_of_any_kind_are_groups():
    labels = (ITEMS[1][:, None] == NAMES).argmax(1)
    guard = Guard(ITEMS[0], labels, coarser=torch.as_tensor(labels) // 2)
    assert guard.coarser.groups == (tuple((label, label // 2) for label in range(CLASSES)),)
    assert set(guard.ask(NEW[0]).level) >= {0, 1}


def drawn_queries(kind, g, n, share):
    """Probabilities of labels and of groups, and which are right, where confusions are hostile."""
    p = g.random(n)
    if kind == "step":  # labels are right above a step; groups are a little too often wrong
        fine = g.random(n) < np.where(p > share, 0.97, 0.6)
        return p, p + (1 - p) * g.random(n), fine, fine | (g.random(n) < share)
    if kind == "crossing":  # what is surest of its group is wrong most often
        fine = g.random(n) < 0.55 + 0.45 * p
        return p, np.maximum(p, 1 - p), fine, fine | (g.random(n) < np.where(p < 0.3, 0.4, 0.8))
    fine = g.random(n) < p  # calibrated
    coarse = p + (1 - p) * g.beta(3, 1, n)
    return p, coarse, fine, fine | (g.random(n) < (coarse - p) / (1 - p))


def as_queries(p, right, grid):
    n = len(p)
    return CalibrationQueries.of_answers(
        p, right, np.ones(n, bool), grid=grid, abstained=np.zeros(n, bool), cross_fitted=False
    )


@pytest.mark.parametrize("kind", ["step", "crossing", "calibrated"])
def test_300_worlds_keep_the_precision_of_each_level_and_of_all_answers(kind):
    """Estimand: precision of each level's answers, by 100,000 new queries.

    A group's threshold that is tested on all queries is the counterexample.
    """
    asked, broken, naive = Guarantee("precision", 0.9, of="label"), [], []
    for seed in range(300):
        g = np.random.default_rng(seed)
        share = g.choice([0.3, 0.5, 0.7, 0.9])
        calibrating, others = (drawn_queries(kind, g, 500, share) for _ in range(2))
        queries = [as_queries(calibrating[at], calibrating[2 + at], others[at]) for at in range(2)]
        try:
            rule = LevelRule.of_levels(queries, asked, Levels(()))
        except InputError:
            broken.append(False)
            continue
        p, coarse, fine_right, coarse_right = drawn_queries(kind, g, 100_000, share)
        fine = p >= rule.rules[0].value if 0 in rule.rules else np.zeros(len(p), bool)
        group = ~fine & (coarse >= rule.rules[1].value if 1 in rule.rules else False)
        shares = [fine_right[fine], coarse_right[group]]
        broken.append(any(len(one) > 100 and one.mean() < 0.9 for one in shares))
        try:
            least = Rule.guaranteeing(queries[1], asked).value
        except InputError:
            continue
        left = coarse_right[~fine & (coarse >= least)]
        naive.append(len(left) > 100 and left.mean() < 0.9)
    assert binomtest(sum(broken), len(broken)).proportion_ci(0.9, method="exact").high <= 0.05
    if kind != "calibrated":
        assert np.mean(naive) > 0.2


@pytest.mark.parametrize("key", [None, 5, 2.5, float("nan"), ("a",)])
def test_labels_of_a_mapping_are_of_one_type(key):
    """A file would hold them, and refuse to be read."""
    with pytest.raises(InputError, match="labels"):
        Levels.read({"boot": "shoes", "coat": "clothes", key: "clothes"}, ["boot", "coat"])


def levels_of_file():
    return Levels.read([KIND, WORN], sorted(KIND)).content()


FORGED = {
    "no list": (lambda c: {"labels": []}, r"guard\.coarser is {.*}, not a list"),
    "no levels": (lambda c: [], r"guard\.coarser is empty"),
    "a level that is no object": (lambda c: [c[0], 3], r"guard\.coarser\.1 is 3, not an object"),
    "no labels": (lambda c: [{"groups": c[0]["groups"]}], r"guard\.coarser\.0\.labels is missing"),
    "no groups": (lambda c: [{"labels": c[0]["labels"]}], r"guard\.coarser\.0\.groups is missing"),
    "empty columns": (lambda c: [{"labels": [], "groups": []}], r"coarser\.0\.labels is empty"),
    "unknown field": (lambda c: [c[0] | {"more": 1}], r"coarser\.0\.more is no field of a level"),
    "labels of two types": (
        lambda c: [c[0] | {"labels": [*c[0]["labels"][:-1], 3]}],
        r"coarser\.0\.labels is \[.*, not a list of str",
    ),
    "labels that are flags": (
        lambda c: [c[0] | {"labels": [True] * 6}],
        r"coarser\.0\.labels is \[.*, not a list of int",
    ),
    "labels of numbers with a point": (
        lambda c: [c[0] | {"labels": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]}],
        r"coarser\.0\.labels is \[.*, not a list of int",
    ),
    "a huge label": (
        lambda c: [c[0] | {"labels": [0, 1, 2, 3, 4, 10**30]}],
        r"coarser\.0\.labels holds 1e\+30, which no 64 bits hold",
    ),
    "labels of another type than the first level": (
        lambda c: [c[0], c[1] | {"labels": [*range(6)]}],
        r"coarser\.1\.labels are of another type than at level 1",
    ),
    "other labels than the index": (
        lambda c: [c[0] | {"labels": list("uvwxyz")}],
        r"guard\.coarser has no label of the items of its index",
    ),
    "numbers for an index of texts": (
        lambda c: [c[0] | {"labels": [*range(6)]}],
        r"guard\.coarser has no label of the items of its index",
    ),
    "levels without a common label": (
        lambda c: [c[0], c[1] | {"labels": list("uvwxyz")}],
        r"guard\.coarser: its levels have no label in common",
    ),
    "groups of two types": (
        lambda c: [c[0] | {"groups": [*c[0]["groups"][:-1], None]}],
        r"coarser\.0\.groups is \[.*, not a list of str",
    ),
    "an empty name": (
        lambda c: [c[0] | {"groups": [" ", *c[0]["groups"][1:]]}],
        r"coarser\.0\.groups holds an empty text, which names no group",
    ),
    "fewer groups": (
        lambda c: [c[0] | {"groups": c[0]["groups"][:-1]}],
        r"coarser\.0\.groups has 5 entries for 6 labels",
    ),
    "a label in two groups": (
        lambda c: [c[0] | {"labels": [c[0]["labels"][0], *c[0]["labels"][:-1]]}],
        r"coarser\.0\.labels holds 'bag' twice",
    ),
    "labels in another order": (
        lambda c: [c[0] | {"labels": c[0]["labels"][::-1]}],
        r"coarser\.0\.labels is not sorted: 'shirt'",
    ),
    "a level that is no coarser": (
        lambda c: [c[0], c[0]],
        r"guard\.coarser holds levels that are not nested: .*level 2 has as many groups as level 1",
    ),
    "levels in another order": (
        lambda c: c[::-1],
        r"guard\.coarser holds levels that are not nested: .*level 2 is finer than level 1",
    ),
    "a group in two coarser ones": (
        lambda c: [c[0], c[1] | {"groups": ["worn", *c[1]["groups"][1:]]}],
        r"guard\.coarser holds levels that are not nested: .*is in two groups of level 2",
    ),
    "labels as groups": (
        lambda c: [c[0] | {"groups": c[0]["labels"]}],
        r"level 1 has as many groups as the labels, and is no coarser",
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_levels_of_a_file_are_refused_by_their_field(name, tmp_path):
    forge, said = FORGED[name]
    guard, path = made(), tmp_path / "guard"
    parts = {**guard.embedder._parts(), "index": guard.index._part()}
    told = {"precision": 0.9, "trained_on_items": None, "by_class": False}
    whole = told | {"coarser": levels_of_file()}
    files.write(path, parts | {"guard": files.Part(GUARD, whole)})
    assert Guard.load(path).coarser == guard.coarser
    forged = told | {"coarser": forge(levels_of_file())}
    files.write(path, parts | {"guard": files.Part(GUARD, forged)})
    with pytest.raises(FileFormatError, match=said):
        Guard.load(path)


def test_forged_levels_next_to_rules_of_classes_are_refused(tmp_path):
    guard, path = made(), tmp_path / "guard"
    parts = {**guard.embedder._parts(), "index": guard.index._part()}
    told = {"precision": 0.9, "by_class": True, "coarser": levels_of_file()}
    files.write(path, parts | {"guard": files.Part(GUARD, told)})
    with pytest.raises(FileFormatError, match=r"guard\.by_class is true next to guard\.coarser"):
        Guard.load(path)


def test_levels_with_more_labels_than_the_items_are_nested_and_come_back(tmp_path):
    more = {**KIND, "clog": "shoes", "ring": "jewels"}, {**WORN, "clog": "worn", "ring": "worn"}
    guard = made().at(0.9, coarser=[*more])
    guard.save(tmp_path / "guard")
    assert Guard.load(tmp_path / "guard").coarser == guard.coarser
    with pytest.raises(InputError, match="'shoes' of level 1.*two groups of level 2"):
        made().at(0.9, coarser=[more[0], {**more[1], "clog": "carried"}])


def test_one_answer_has_its_level_and_is_unpacked_as_before():
    answers = made().ask(NEW[0])
    assert {0, 1, None} <= {answer.level for answer in answers}
    for query, answer in enumerate(answers):
        label, probability, reason = answer
        assert answer == (label, probability, reason)
        assert len(answer) == 3
        assert answer.level == answers.level[query]
        assert (answer.level is None) == bool(reason)
        assert answer.level is None or type(answer.level) is int
        assert KIND.get(label, label) in {label, *KIND.values()}
    coarse = next(answer for answer in answers if answer.level == 1)
    assert coarse.label in KIND.values()
    for again in (pickle.loads(pickle.dumps(coarse)), copy.copy(coarse), copy.deepcopy(coarse)):
        assert (again, again.level) == (coarse, 1)
    assert repr(coarse).endswith("reason='', level=1)")
    other = coarse._replace(probability=0.5)
    assert (tuple(other), other.level) == ((coarse.label, 0.5, ""), 1)
    with pytest.raises(AttributeError):
        coarse.level = 2
    plain = made().at(0.9, coarser=False).ask(NEW[0])[0]
    assert plain.level is None
    assert "level" not in repr(plain)

"""Queries that depend on each other: guarantees count groups, and every door takes them."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
from scipy.stats import norm

from laplace_metric import Guard, LaplaceEmbedder
from laplace_metric.calibration import (
    CalibrationQueries,
    Guarantee,
    LevelRule,
    Rule,
    calibrate_scores,
    guarantee,
)
from laplace_metric.calibration._group_column import split_by_group
from laplace_metric.calibration.guarantees._betting import (
    GroupTests,
    group_p_values,
    student_p_values,
)
from laplace_metric.calibration.guarantees._risk_control import threshold_of_miss
from laplace_metric.calibration.labels._levels import Levels
from laplace_metric.errors import DependentQueriesWarning, FewQueriesWarning, InputError
from tests.calibration.arrays import made_or_refused

RUNS, DELTA = 200, 0.05
MOST = DELTA + 3 * (DELTA * (1 - DELTA) / RUNS) ** 0.5


def of_full_groups(gains, low):
    return student_p_values(gains, low, np.ones(gains.shape))


def sessions(g, n_groups, size, alike=0.7):
    """Scores of questions, those of a session right or wrong together."""
    latent = g.normal(size=(n_groups, 1)) * alike**0.5
    latent = latent + g.normal(size=(n_groups, size)) * (1 - alike) ** 0.5
    right = latent < norm.ppf(0.7)
    score = g.normal(np.where(right, 0.8, 0.65), 0.07)
    return score.ravel(), right.ravel(), np.repeat(np.arange(n_groups), size)


def precision_from(t):
    good, bad = 0.7 * norm.sf(t, 0.8, 0.07), 0.3 * norm.sf(t, 0.65, 0.07)
    return good / (good + bad)


@pytest.mark.parametrize("test", [group_p_values, of_full_groups])
@pytest.mark.parametrize("size", [1, 8])
def test_of_groups_that_just_miss_the_target_few_are_rejected(test, size):
    """Groups right or wrong as a whole, or with chances of their own: the level is kept."""
    g, target = np.random.default_rng(size), 0.9
    whole = g.random((150, 2_000)) < target
    chance = g.beta(target * 5, (1 - target) * 5, size=(150, 2_000))
    for right in (size * whole, g.binomial(size, chance)):
        gains = (right - target * size) / size
        p = test(gains, target)
        assert (p <= 0.05).mean() <= 0.05 + 3 * (0.05 * 0.95 / 2_000) ** 0.5 + 0.005


def test_groups_that_are_better_are_found():
    g = np.random.default_rng(0)
    gains = (g.binomial(8, g.beta(9.7, 0.3, size=(150, 200))) - 0.9 * 8) / 8
    assert (group_p_values(gains, 0.9) <= 0.05).mean() > 0.9
    assert (of_full_groups(gains, 0.9) <= 0.05).mean() > 0.9


def test_a_gain_is_the_sum_over_a_group_of_what_is_accepted():
    """Each answer weighs the same: the sign of all gains is that of the share of right answers."""
    g = np.random.default_rng(0)
    p, group = g.random(60).round(1), g.integers(0, 9, 60) ** 2 // 9
    right, names = g.random(60) < 0.5, np.unique(group)
    most = int(np.bincount(group).max())
    tests = GroupTests.of(p, np.searchsorted(names, group), len(names), most)
    found = tests.gains(right - 0.9)
    for at, threshold in enumerate(tests.grid):
        for number, name in enumerate(names):
            own = (group == name) & (p >= threshold)
            assert found[number, at] == pytest.approx((right[own] - 0.9).sum() / most)


def test_sessions_break_a_guarantee_that_does_not_know_of_them_and_none_that_does():
    g = np.random.default_rng(0)
    broken, given = {"queries": 0, "groups": 0}, 0
    for _ in range(40):
        score, right, session = sessions(g, 150, 10, 0.9)
        for name, groups in (("queries", None), ("groups", session)):
            try:
                rule = calibrate_scores(score, right, groups=groups).guarantee(precision=0.9)
            except InputError:
                continue
            broken[name] += precision_from(rule.score) < 0.9
            given += name == "groups"
    assert broken["queries"] >= 4
    assert broken["groups"] <= 3
    assert given >= 10


SIZES = {
    "geometric": lambda g, n: g.geometric(1 / 5, n),
    "Pareto": lambda g, n: np.minimum(200, g.random(n) ** (-1 / 1.5)).astype(int),
    "1 or 20": lambda g, n: np.where(g.random(n) < 0.1, 20, 1),
    "1 or 50": lambda g, n: np.where(g.random(n) < 0.1, 50, 1),
}
LARGE = {"geometric": 7, "Pareto": 7, "1 or 20": 1, "1 or 50": 1}


def uneven(sizes: str, harder: bool, seed, n: int):
    """Score, truth and session of questions: those of large sessions are harder, or easier."""
    g = np.random.default_rng(seed)
    size = SIZES[sizes](g, n)
    group = np.repeat(np.arange(n), size)
    large = (size > LARGE[sizes])[group]
    logit = np.where(large, 1.15, 2.9) if harder else np.where(large, 3.5, 1.75)
    score = g.normal(size=len(group))
    logit = logit + g.normal(0, 0.5, n)[group] + 0.8 * score
    return score, g.random(len(group)) < 1 / (1 + np.exp(-logit)), group


@pytest.mark.parametrize("harder", [True, False])
@pytest.mark.parametrize("sizes", SIZES)
def test_groups_of_unequal_size_keep_the_precision_of_all_their_answers(sizes, harder):
    """No rule shows less on its own queries, and hardly any on new ones."""
    broken = given = 0
    for seed in range(12):
        score, right, group = uneven(sizes, harder, seed, 600)
        found = calibrate_scores(score, right, groups=group)
        rule, refused = made_or_refused(found.guarantee, precision=0.9)
        if rule is None:
            assert "as they are of very unequal size: the largest has" in refused
            continue
        given += 1
        assert rule.estimate >= 0.9
        assert not rule.proven
        score, right, _ = uneven(sizes, harder, 10**6 + seed, 3_000)
        broken += right[rule(score).answered].mean() < 0.9
    assert broken <= 2  # P(Bin(12, .05) > 2) = .02
    assert given >= 6 or sizes != "geometric"


@pytest.mark.parametrize("rate", ["recall", "fmr", "fpir"])
def test_other_rates_of_groups_of_unequal_size_are_those_of_all_answers(rate):
    given = broken = 0
    for seed in range(12):
        score, right, group = uneven("geometric", True, seed, 600)
        found = calibrate_scores(score, right, groups=group, cross_fit=0)
        asked = {rate: 0.6 if rate == "recall" else 0.4}
        rule, _ = made_or_refused(found.guarantee, **asked)
        if rule is None:
            continue
        assert not rule.proven
        given += 1
        score, right, _ = uneven("geometric", True, 10**6 + seed, 3_000)
        kept = rule(score).answered
        broken += kept[right].mean() < 0.6 if rate == "recall" else kept[~right].mean() > 0.4
    assert broken <= 2
    assert given >= 6


@pytest.mark.parametrize("n", [36, 60, 150, 400])
@pytest.mark.parametrize("sizes", SIZES)
def test_large_groups_that_are_wrong_as_a_whole_break_few_tests(sizes, n):
    """Ratios of sums of groups that are right or wrong as a whole, just below the target."""
    g, target, runs = np.random.default_rng(n), 0.9, 1_000
    many = SIZES[sizes](g, 200_000)
    large = many[many > LARGE[sizes]].sum() / many.sum()
    small = min(0.99, target / (1 - large))
    chances = small, (target - small * (1 - large)) / large
    size = SIZES[sizes](g, n * runs).reshape(n, runs)
    right = g.random((n, runs)) < np.where(size > LARGE[sizes], chances[1], chances[0])
    p = [
        student_p_values(own[:, None], target, whole[:, None])[0]
        for own, whole in zip((size * (right - target)).T, size.T.astype(float), strict=True)
    ]
    assert (np.array(p) <= 0.05).mean() <= 0.05 + 3 * (0.05 * 0.95 / runs) ** 0.5


def test_sessions_of_a_guard_that_differ_in_length_are_not_a_false_guarantee():
    """Long sessions are of two classes that lie near each other."""
    g = np.random.default_rng(0)

    def drawn(n):
        size = np.where(g.random(n) < 0.1, 30, 1)
        y = np.where(size > 1, g.integers(0, 2, n), g.integers(2, 6, n))
        means = np.diag([0.9, 0.9, 4, 4, 4, 4.0])[np.repeat(y, size)]
        x = means + 0.6 * g.normal(size=(size.sum(), 6)).astype(np.float32)
        return x.astype(np.float32), np.repeat(y, size), np.repeat(np.arange(n), size)

    x, y, session = drawn(150)
    new, truth, _ = drawn(2_000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        guard = Guard(x, y, precision=0.9, groups=session)
        assert "unequal size: the largest has" in str(guard)
        if guard.rule is None:
            return
        answers = guard.ask(new)
    assert (answers.label == truth)[answers.answered].mean() >= 0.9


def test_a_proven_guarantee_of_groups_takes_halves_and_is_kept():
    g, made = np.random.default_rng(1), 0
    for _ in range(RUNS):
        right = np.repeat(g.random(300) < 0.7999, 3)
        group = np.repeat(np.arange(300), 3)
        found = calibrate_scores(g.normal(size=900), right, groups=group, cross_fit=0)
        assert len(np.intersect1d(found.queries.group, np.arange(300))) == 150
        try:
            rule = found.guarantee(precision=0.8)
        except InputError:
            continue
        assert "(proven by betting on groups)\non 450 queries of 150 groups" in str(rule)
        made += 1
    assert made / RUNS <= MOST


@pytest.mark.parametrize("rate", ["recall", "fmr", "fpir"])
def test_other_rates_count_groups_too(rate, tmp_path):
    g, broken = np.random.default_rng(2), 0
    for _ in range(40):
        score, right, session = sessions(g, 200, 4)
        found = calibrate_scores(score, right, groups=session, cross_fit=0)
        rule = found.guarantee(**{rate: 0.6 if rate == "recall" else 0.3})
        if rate == "recall":
            broken += norm.sf(rule.score, 0.8, 0.07) < 0.6
        else:
            broken += norm.sf(rule.score, 0.65, 0.07) > 0.3
    assert broken <= 5
    rule.save(tmp_path / "rule.safetensors")
    assert str(Rule.load(tmp_path / "rule.safetensors")) == str(rule)


def test_no_part_shares_a_group_with_another():
    g = np.random.default_rng(0)
    group, order = g.integers(0, 40, 300), g.permutation(300)
    parts = split_by_group(order, group, 5)
    assert sorted(np.concatenate(parts).tolist()) == list(range(300))
    for one, part in enumerate(parts):
        for other in parts[:one]:
            assert not np.intersect1d(group[part], group[other]).size
    assert np.ptp([len(part) for part in parts]) <= np.bincount(group).max()


def videos(g, n_classes=10, clips=20, frames=5):
    means = 1.3 * g.normal(size=(n_classes, 16))
    classes = np.repeat(np.arange(n_classes), clips)
    scenes = means[classes] + g.normal(size=(len(classes), 16))
    x = np.repeat(scenes, frames, 0) + 0.1 * g.normal(size=(len(scenes) * frames, 16))
    new = g.integers(n_classes, size=600)
    later = means[new] + g.normal(size=(600, 16)) + 0.1 * g.normal(size=(600, 16))
    return x, np.repeat(classes, frames), np.repeat(np.arange(len(scenes)), frames), later, new


def test_a_guard_of_frames_is_right_where_it_knows_the_videos():
    x, y, clip, later, truth = videos(np.random.default_rng(0))
    with pytest.warns(DependentQueriesWarning, match="pass groups="):
        blind = Guard(x, y, precision=0.9)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DependentQueriesWarning)
        guard = Guard(x, y, precision=0.9, groups=[f"clip {c}" for c in clip])
    answers = guard.ask(later)
    assert answers.answered.mean() > 0.6
    assert (answers.label == truth)[answers.answered].mean() >= 0.9
    assert "cross-fitted queries of 200 groups" in str(guard.rule)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seen = blind.ask(later)
    assert seen.answered.mean() < answers.answered.mean()


def test_a_saved_guard_keeps_its_groups(tmp_path):
    x, y, clip, *_ = videos(np.random.default_rng(1), n_classes=5, clips=10)
    guard = Guard(x, y, precision=0.8, groups=clip)
    guard.save(tmp_path / "guard.safetensors")
    again = Guard.load(tmp_path / "guard.safetensors")
    assert str(again.rule) == str(guard.rule)
    held_out = Guard(x[:150], y[:150] % 3, held_out=(x[150:], y[150:] % 3), groups=clip[150:])
    assert held_out.calibration.group.size


def test_groups_that_cut_a_class_from_the_gallery_are_told_or_refused():
    x, y, clip, *_ = videos(np.random.default_rng(2), n_classes=6, clips=8)
    one = np.where(y == 0, 1_000, clip)  # all of a class in one group
    with pytest.warns(DependentQueriesWarning, match=r"1 of 6.*one group.*\(0\)"):
        Guard(x, y, precision=0.8, groups=one)
    many = np.repeat(np.arange(24), 4)
    rows = np.random.default_rng(0).normal(size=(96, 4))
    with pytest.raises(InputError, match="all 24 classes.*one group"):
        Guard(rows, many, groups=many)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([0] * 200, r"are of 1 groups.*at least 20"),
        (list(range(199)), "groups has 199 entries for 200 queries"),
        ([*range(199), float("nan")], "groups holds nan in row 199"),
        ([*range(199), None], "groups holds None in row 199"),
        ([*map(str, range(199)), " "], "groups holds ' ' in row 199"),
        ([*range(199), {1}], r"groups holds \{1\} in row 199"),
        ([*range(199), [1]], r"groups holds \[1\] in row 199"),
        ([*range(199), "199"], r"groups holds strings and others, '199' and 0"),
        (dict.fromkeys(range(200)), "pass the group of each"),
        (set(range(200)), "pass the group of each"),
        (np.arange(200)[:, None], r"groups has shape \(200, 1\): pass \[200\]"),
        ([], "groups has 0 entries for 200 queries"),
        ("session", "pass the group of each"),
        (5, "pass the group of each"),
    ],
)
def test_groups_that_cannot_be_are_refused_by_name(groups, message):
    g = np.random.default_rng(0)
    score, right = g.normal(size=200), g.random(200) < 0.7
    with pytest.raises(InputError, match=message):
        calibrate_scores(score, right, groups=groups)
    with pytest.raises(InputError, match=message):
        guarantee(g.random(200), right, precision=0.5, groups=groups)


DOORS = {
    "items": lambda x, y, groups: Guard(x, y, precision=0.8, groups=groups),
    "held_out": lambda x, y, groups: Guard(x, y, precision=0.8, held_out=(x + 1, y), groups=groups),
    "again": lambda x, y, groups: Guard(x, y, precision=0.8).calibrate(x + 1, y, groups=groups),
    "cross_index": lambda x, y, groups: LaplaceEmbedder.from_embeddings(x, y).cross_index(
        x, y, groups=groups, progress=False
    ),
}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("door", DOORS)
def test_every_door_refuses_groups_that_cannot_be_and_tells_of_a_large_one_once(door):
    g = np.random.default_rng(0)
    y = np.arange(200) % 4
    x = (3 * np.eye(4)[y] + g.normal(size=(200, 4))).astype(np.float32)
    own = np.arange(200) // 2
    for groups, message in (
        (np.zeros(200, int), "are of 1 groups"),
        (own[:-1], "199 entries for 200"),
        (np.where(own == 7, np.nan, own), "groups holds nan in row 14"),
        (own[:, None], r"shape \(200, 1\)"),
    ):
        with pytest.raises(InputError, match=message):
            DOORS[door](x, y, groups)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        DOORS[door](x, y, np.where(np.arange(200) < 150, 0, np.arange(200)))
    told = [w for w in seen if "has 150 of the 200" in str(w.message)]
    assert len(told) == 1
    assert told[0].filename == __file__


@pytest.mark.usefixtures("quick")
def test_a_guard_of_groups_says_how_many_it_takes():
    g = np.random.default_rng(0)
    y = np.arange(200) % 4
    x = (3 * np.eye(4)[y] + g.normal(size=(200, 4))).astype(np.float32)
    with pytest.warns(FewQueriesWarning, match=r"takes \d+ groups.*without any error"):
        guard = Guard(x, y, precision=0.99, groups=np.arange(200) // 2)
    assert guard.calibration.queries_needed(0.99, of="label").more_queries is None


def test_a_group_with_nearly_all_queries_is_told_and_decides():
    """Three quarters of the answers are wrong, all in one group: they are not left out."""
    g = np.random.default_rng(0)
    groups = np.where(np.arange(400) < 300, 0, np.arange(400))
    right = np.where(np.arange(400) < 300, False, g.random(400) < 0.97)
    refused = r"these 101 groups: it takes [\d,]+ groups at least.*: the largest has 75% of all"
    with (
        pytest.warns(DependentQueriesWarning, match="0 has 300.*400 queries"),
        pytest.raises(InputError, match=refused),
    ):
        guarantee(np.ones(400) * 0.9, right, precision=0.8, groups=groups)


@pytest.mark.parametrize(
    ("share", "told", "advice"),
    [
        (0.6, r"at no threshold enough are right \(of the [\d,]+ surest answers, \d+", "less"),
        (
            0.93,
            r"9\d\.\d%, which is too near to 0\.9 for so few groups \(it takes \d+",
            "on more groups",
        ),
    ],
)
def test_enough_groups_with_too_many_errors_are_not_told_that_they_are_too_few(share, told, advice):
    g = np.random.default_rng(1)
    right, groups = g.random(400) < share, np.arange(400) // 4
    with pytest.raises(InputError, match=rf"these 100 groups: .*{told}.*{advice}\.$"):
        guarantee(g.random(400), right, precision=0.9, groups=groups)


def test_the_answers_that_a_refusal_of_groups_counts_are_those_of_its_threshold():
    """Scores order well, and the surest come nearest: counted from the sorted list."""
    g = np.random.default_rng(2)
    p = g.permutation(400) / 400
    right = g.random(400) < 0.4 + 0.52 * p
    with pytest.raises(InputError, match="surest") as error:
        guarantee(p, right, precision=0.9, groups=np.arange(400) // 4)
    accepted, good = map(
        int, re.search(r"the (\d+) surest answers, (\d+)", str(error.value)).groups()
    )
    assert 0 < accepted < 400
    assert right[np.argsort(-p)][:accepted].sum() == good


def sessions_of_one_answer_or_all(seed, n_groups=160, size=20):
    """One answer of a session is "a", and right; in few sessions all are "a", and wrong."""
    g = np.random.default_rng(seed)
    label = np.full((n_groups, size), "b")
    label[:, 0], right = "a", g.random((n_groups, size)) < 0.97
    bad = g.random(n_groups) < 0.013
    label[bad], right[bad] = "a", False
    group = np.repeat(np.arange(n_groups), size)
    return g.random(n_groups * size), right.ravel(), label.ravel(), group


@pytest.mark.parametrize("seed", [14, 15, 17, 18])
def test_a_class_with_one_answer_in_each_group_may_have_all_of_a_new_one(seed):
    """Of the answers that are "a" .77 are right, which 80 groups without a bad one hide."""
    score, right, label, group = sessions_of_one_answer_or_all(seed)
    found = calibrate_scores(score, right, groups=group, labels=label, cross_fit=0)
    rule, refused = made_or_refused(found.guarantee_by_class, 0.9)
    if rule is None:
        assert "'a' (80 tested answers, at least" in refused
        return
    assert "a" not in rule.rules
    assert rule.refused["a"].least > 9 * rule.refused["a"].answers
    assert rule.rules["b"].proven


def test_a_part_of_groups_keeps_the_size_of_the_whole_ones(tmp_path):
    group = np.repeat(np.arange(60), 20).astype(float)

    def of(group):
        n, flags = len(group), np.ones(len(group), bool)
        p = np.linspace(0.5, 1, n)
        return CalibrationQueries.of_answers(
            p, flags, flags, grid=p, abstained=~flags, cross_fitted=False, group=group
        )

    asked, whole = Guarantee("precision", 0.9), of(group)
    assert Rule.guaranteeing(whole, asked).proven
    half = whole.take(np.flatnonzero(np.arange(1_200) % 20 < 10))
    assert half.whole == half.take(np.arange(500)).whole == 20
    with pytest.raises(InputError, match="cannot be guaranteed.*60 groups"):
        Rule.guaranteeing(half, asked)
    easy = Rule.guaranteeing(half, Guarantee("precision", 0.8))
    assert easy.proven
    easy.save(tmp_path / "rule.safetensors")
    again = Rule.load(tmp_path / "rule.safetensors")
    assert again == easy
    assert again.queries.whole == 20
    uneven = of(np.append(group, np.full(5, 60.0)))
    part = uneven.take(np.flatnonzero(np.append(np.arange(1_200) % 20 < 10, np.zeros(5, bool))))
    assert part.whole == 0
    assert not Rule.guaranteeing(part, Guarantee("precision", 0.8)).proven


def test_of_levels_that_finer_ones_leave_to_a_group_no_theorem_is_named():
    """What a threshold leaves of a group is no fixed set: one answer here, and perhaps all."""
    n, size = 400, 2
    group = np.repeat(np.arange(n), size).astype(float)
    last, flags = np.tile(np.arange(size) == 1, n), np.ones(n * size, bool)

    def of(p, right):
        return CalibrationQueries.of_answers(
            p, right, flags, grid=p, abstained=~flags, cross_fitted=False, group=group
        )

    fine = np.where(last, np.linspace(0.05, 0.1, n * size), 0.9)
    queries = [of(fine, ~last), of(np.full(n * size, 0.9), flags)]
    levels = Levels.read(
        {"boot": "shoe", "sneaker": "shoe", "cap": "hat"}, ["boot", "sneaker", "cap"]
    )
    rule = LevelRule.of_levels(queries, Guarantee("precision", 0.8, of="label"), levels)
    assert rule.rules[0].proven
    assert not rule.rules[1].proven
    assert rule.rules[1].queries.whole == size


def easy_or_hard_sessions(g, n_groups, size=30):
    """Two hits of each question; all second ones of a session have nearly the same score."""
    group = np.repeat(np.arange(n_groups), size)
    second = g.normal(size=n_groups)[group] + 0.05 * g.normal(size=len(group))
    first = second + 3 + 0.1 * g.normal(size=len(group))
    relevant = np.stack([g.random(len(group)) < 0.3, np.ones(len(group), bool)], 1)
    return np.stack([first, second], 1), relevant, group


@pytest.mark.filterwarnings("ignore::laplace_metric.errors.ScoresWarning")
def test_of_sessions_few_relevant_items_are_lost():
    miss, lost = 0.105, []
    for seed in range(60):
        g = np.random.default_rng(seed)
        scores, relevant, group = easy_or_hard_sessions(g, 20)
        found = calibrate_scores(scores, relevant, groups=group, cross_fit=0)
        scores, relevant, _ = easy_or_hard_sessions(g, 300)
        kept = np.arange(2) < found.keep_relevant(scores, miss)[:, None]
        lost.append(((relevant & ~kept).sum(1) / relevant.sum(1)).mean())
    assert np.mean(lost) <= miss


def test_groups_of_copies_lose_what_one_query_of_each_loses():
    g = np.random.default_rng(0)
    p, relevant = -np.sort(-g.random((60, 5))), (g.random((60, 5)) < 0.4).astype(np.int8)
    total = relevant.sum(1) + g.integers(0, 2, 60) * (g.random(60) < 0.05)
    one = threshold_of_miss(p, relevant, total, 0.15)
    copies = [np.repeat(each, 7, 0) for each in (p, relevant, total)]
    known = np.repeat(total > 0, 7)
    assert threshold_of_miss(*(each[known] for each in copies), 0.15, 7) == one
    with pytest.raises(InputError, match="at least 9 groups.*of 7 quer"):
        threshold_of_miss(*(each[known][:56] for each in copies), 0.1, 7)


def test_a_precision_at_another_share_refuses_groups():
    g = np.random.default_rng(0)
    right, mated = g.random(600) < 0.95, g.random(600) < 0.9
    score, group = g.normal(size=600), np.arange(600) // 2
    found = calibrate_scores(
        score, right & mated, mated=mated.astype(int), groups=group, cross_fit=0
    )
    with pytest.raises(InputError, match="precision_at counts independent queries: calibrate on"):
        found.guarantee(precision=0.5).precision_at(0.3)


def test_label_sets_with_a_confidence_refuse_groups():
    g = np.random.default_rng(0)
    y = np.arange(400) % 4
    x = (3 * np.eye(4)[y] + g.normal(size=(400, 4))).astype(np.float32)
    index = LaplaceEmbedder.from_embeddings(x, y).index(x, y, progress=False)
    index.calibrate(x + 0.1, y, groups=np.arange(400) // 2)
    for by_class in (True, False):
        with pytest.raises(InputError, match="label sets counts independent queries"):
            index.label_sets(x, confidence=0.95, by_class=by_class)
    assert len(index.label_sets(x, by_class=False)) == 400


@pytest.mark.parametrize(
    ("relevant", "asked", "told"),
    [
        (1, {"fmr": 0.1}, "fmr= cannot be guaranteed: of these 100 groups none has a wrong hit"),
        (1, {"fpir": 0.1}, "fpir= .* none has a query without a match that finds something"),
        (0, {"precision": 0.5, "abstained": True}, "precision= .* none has an answer"),
        (0, {"recall": 0.5, "abstained": True}, "recall= .* none has an answer"),
        (0, {"fmr": 0.5, "abstained": True}, "fmr= .* none has an answer"),
    ],
)
def test_a_rate_of_groups_that_counts_nothing_is_told(relevant, asked, told):
    if asked.pop("abstained", False):
        asked["abstained"] = np.ones(400, bool)
    p = np.linspace(0.1, 0.9, 400)
    with pytest.raises(InputError, match=told):
        guarantee(p, np.full(400, relevant), **asked, groups=np.arange(400) // 4)

"""The monitor: cuts, restarts, errors, words, and its guarantee for a quiet stream."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from laplace_metric import io as files
from laplace_metric.errors import FileFormatError, InputError, NonFiniteError
from laplace_metric.monitor import Monitor
from tests.saved_files import rewrite

NAMES = ("uncertainty", "match probability")


def values(n: int, seed: int, shift: float = 0.0) -> dict[str, torch.Tensor]:
    """Skewed, and with ties."""
    g = torch.Generator().manual_seed(seed)
    u = torch.randn(n, generator=g).add(shift).exp()
    return {NAMES[0]: u, NAMES[1]: torch.rand(n, generator=g).mul(20).round()}


def stream(n: int = 700) -> dict[str, torch.Tensor]:
    quiet, loud = values(n // 2, 1), values(n - n // 2, 2, shift=2.0)
    return {name: torch.cat([quiet[name], loud[name]]) for name in NAMES}


def monitor(**options) -> Monitor:
    return Monitor(values(2000, 0), **{"window": 100, **options})


def cut(data, size):
    n = len(data[NAMES[0]])
    return [{k: x[i : i + size] for k, x in data.items()} for i in range(0, n, size)]


@pytest.fixture(scope="module")
def uncut():
    one = monitor()
    one.update(stream())
    return one


@pytest.mark.parametrize("size", [1, 333])
def test_cuts_change_nothing(uncut, size):
    one, reports = monitor(), []
    for part in cut(stream(), size):
        reports += one.update(part)
    assert reports == one.reports == uncut.reports
    assert one.alarms == uncut.alarms
    assert one.alarms
    for name in NAMES:
        a, b = one.streams[name].martingale, uncut.streams[name].martingale
        assert np.array_equal(a.bets, b.bets)


def test_says_what_when_and_how_far(uncut):
    assert [(r.first, r.last) for r in uncut.reports] == [
        (i + 1, i + 100) for i in range(0, 700, 100)
    ]
    assert [r.drifted for r in uncut.reports] == [()] * 3 + [NAMES[:1]] * 4
    [alarm] = uncut.alarms
    assert (alarm.name, alarm.kind) == (NAMES[0], "large")
    assert 350 < alarm.at < 420
    assert abs(alarm.since - 351) < 20
    last = uncut.reports[-1]
    now = stream()[NAMES[0]][600:].double()
    assert last.shift_tests[NAMES[0]].window.median == pytest.approx(float(now.quantile(0.5)))
    text = str(last)
    assert "queries 601 to 700: DRIFT" in text
    assert "uncertainty: larger, median" in text
    assert "match probability: as before" in text
    told = [report for report in uncut.reports if "ALARM" in str(report)]
    assert [report.first <= alarm.at <= report.last for report in told] == [True]
    assert f"ALARM at query {alarm.at}: too many large values of uncertainty" in str(told[0])
    assert "no difference seen" in str(uncut.reports[0])
    evidence = uncut.streams[NAMES[0]].martingale.log_value / np.log(10)
    assert last.evidence[NAMES[0]] == pytest.approx(evidence)


def test_alarms_stand_in_the_order_of_their_queries():
    one, first, then = monitor(), values(100, 4), values(100, 5, shift=3.0)
    one.update({**first, NAMES[1]: first[NAMES[1]] + 20})
    [report] = one.update({**then, NAMES[1]: then[NAMES[1]] + 20})
    assert [alarm.name for alarm in one.alarms] == [NAMES[1], NAMES[0]]
    assert report.alarms == one.alarms
    assert report.drifted == NAMES


@pytest.mark.parametrize("at", [0, 357, 700])
def test_goes_on_after_a_restart_as_without(uncut, tmp_path, at):
    one = monitor()
    one.generator.manual_seed(5)
    two = monitor()
    two.generator.manual_seed(5)
    two.update(stream())
    first, rest = (
        {k: x[part] for k, x in stream().items()} for part in (slice(at), slice(at, None))
    )
    if at:
        one.update(first)
    one.save(tmp_path / "monitor")
    one = Monitor.load(tmp_path / "monitor")
    if at < 700:
        one.update(rest)
    assert one.reports == two.reports
    assert one.alarms == two.alarms
    assert one.n == 700
    assert torch.equal(one.generator.get_state(), two.generator.get_state())
    one.save(tmp_path / "a")
    two.save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_damaged_file_says_so(uncut, tmp_path):
    path = tmp_path / "monitor"
    with pytest.raises(FileFormatError, match="monitor.*not exist"):
        Monitor.load(path)
    files.write(path, files.Part(files.Kind("thing", "a thing", 1), {}))
    with pytest.raises(FileFormatError, match="saved monitor.*holds thing"):
        Monitor.load(path)
    uncut.save(path)
    rewrite(path, "monitor", lambda content, _: content.pop("names"))
    with pytest.raises(FileFormatError, match="monitor.names.*missing.*list of str"):
        Monitor.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c, a: a["0.bets"][3:4].fill_(math.nan), "monitor.uncertainty/bets holds nan"),
        (lambda c, a: a["0.bets"][3:4].fill_(-math.inf), "bets is from -inf .* 700 queries cannot"),
        (lambda c, a: a["0.bets"][3:4].fill_(1e30), "bets is from .* to 1e.30"),
        (lambda c, a: a.update({"0.bets": a["0.bets"][:35]}), r"bets has shape \[35\], not \[36\]"),
        (lambda c, a: a["0.best"][3:4].fill_(-1.0), "best holds -1"),
        (lambda c, a: a["0.since"][3:4].fill_(0), "since is from 0 .* they leave 1 to 700"),
        (lambda c, a: a["0.since"][3:4].fill_(701), "since is from .* to 701"),
        (lambda c, a: a.update({"0.since": a["0.since"].int()}), "since is int32, not int64"),
        (lambda c, a: a["0.reference"][:1].fill_(math.nan), "reference holds nan"),
        (lambda c, a: a["0.reference"][:1].fill_(7.5), "values do not hold all of its reference"),
        (lambda c, a: a["0.values"][:1].fill_(9.0), "values are not in ascending order"),
        (lambda c, a: a.update({"0.values": a["0.values"][1:]}), "values has shape"),
        (lambda c, a: a.update({"0.window": a["0.values"][:1]}), "window has shape"),
        (lambda c, a: a.pop("0.bets"), "bets is missing"),
        (lambda c, a: a.update(generator=a["generator"][1:]), "monitor/generator has shape"),
        (lambda c, a: a.pop("generator"), "monitor/generator is missing"),
        (lambda c, a: c["alarms"].pop(), "monitor of 700 queries has .*'alarms': 1"),
        (lambda c, a: c["reports"].pop(), "monitor of 700 queries has .*'reports': 6"),
        (lambda c, a: c["alarms"].reverse(), "bets are those of an alarm"),
        (lambda c, a: c["alarms"][0].update(at=701), "an alarm that 700 queries cannot raise"),
        (lambda c, a: c["alarms"][0].update(kind="huge"), "an alarm that 700 queries cannot raise"),
        (lambda c, a: c["alarms"].__setitem__(0, None), "bets are those of an alarm"),
        (lambda c, a: c.update(n=699), "monitor of 699 queries has"),
        (lambda c, a: c["reports"].reverse(), r"reports\[0\] is of another window"),
        (lambda c, a: c["reports"][-1].update(alarms=[]), r"reports\[6\] is of another window"),
        (
            lambda c, a: c["reports"][0]["shift_tests"]["uncertainty"].update(p_value=2.0),
            "shift_tests.uncertainty.p_value is 2.0, not a number from 0 to 1",
        ),
        (lambda c, a: c["reports"][0]["evidence"].clear(), r"reports\[0\] is of another window"),
        (lambda c, a: c["reports"][0]["shift_tests"].popitem(), r"reports\[0\] is of another w"),
        (lambda c, a: c["reports"][0].pop("level"), "monitor.reports.0.level is missing"),
        (lambda c, a: c["reports"][0].update(level=2), "level is 2, not a number from 0 to 1"),
        (
            lambda c, a: c["reports"][0]["evidence"].update(uncertainty=math.nan),
            "evidence.uncertainty is nan",
        ),
        (lambda c, a: c["alarms"][0].pop("since"), "monitor.alarms.0.since is missing"),
        (lambda c, a: c["reports"][-1]["alarms"][0].update(at="9"), "alarms.0.at is '9'"),
        (lambda c, a: c.update(alarms={}), "monitor.alarms is {}, not a list"),
    ],
)
def test_values_that_no_stream_leaves_are_refused(uncut, tmp_path, change, message):
    """The hashes of the file are right."""
    path = tmp_path / "monitor"
    uncut.save(path)
    rewrite(path, "monitor", change)
    with pytest.raises(FileFormatError, match=message) as caught:
        Monitor.load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["bets", "best", "since"])
def test_before_the_first_query_no_bet_has_gained(tmp_path, name):
    path = tmp_path / "monitor"
    monitor().save(path)
    assert Monitor.load(path).n == 0
    rewrite(path, "monitor", lambda _, arrays: arrays[f"0.{name}"][:1].fill_(1))
    with pytest.raises(FileFormatError, match=f"{name}.*0 queries.*leave"):
        Monitor.load(path)


@pytest.mark.parametrize(
    ("reference", "options", "message"),
    [
        ({}, {}, "reference is empty"),
        ({0: torch.rand(50)}, {}, "reference has the key 0: name each quantity by a string"),
        ([1.0], {}, "reference is a list: pass {name: values"),
        (torch.zeros(50, 2), {}, r"is a Tensor: pass .* such as index\.search\(queries\)\.signals"),
        ({"u": torch.zeros(29)}, {}, "29 values: pass 30"),
        ({"u": torch.zeros(50, 2)}, {}, r"reference\['u'\] has shape \(50, 2\)"),
        ({"u": torch.zeros(50)}, {"window": 29}, "window=29"),
        ({"u": torch.zeros(50)}, {"false_alarms": 0.0}, "false_alarms=0.0"),
    ],
)
def test_bad_beginnings(reference, options, message):
    with pytest.raises(InputError, match=message):
        Monitor(reference, **options)


@pytest.mark.parametrize(
    ("queries", "error", "message"),
    [
        ({NAMES[0]: [1.0]}, InputError, "same names"),
        (torch.zeros(3), InputError, "same names"),
        ({NAMES[0]: [1.0, 2.0], NAMES[1]: [1.0]}, InputError, "one number for each query"),
        ({NAMES[0]: [1.0, 2.0], NAMES[1]: [1.0, float("nan")]}, NonFiniteError, "first at index"),
    ],
)
def test_bad_queries_are_not_taken_in(queries, error, message):
    one = monitor()
    with pytest.raises(error, match=message):
        one.update(queries)
    assert one.n == 0
    assert torch.equal(one.generator.get_state(), torch.Generator().get_state())


def test_alarms_share_the_rate_and_windows_are_corrected():
    both, alone = monitor(), Monitor({NAMES[0]: values(2000, 0)[NAMES[0]]}, window=100)
    thresholds = [m.streams[NAMES[0]].martingale.threshold for m in (both, alone)]
    assert np.exp(thresholds) == pytest.approx([200, 100])
    part = values(100, 9, shift=0.3)
    [one], [other] = both.update(part), alone.update({NAMES[0]: part[NAMES[0]]})
    p = one.shift_tests[NAMES[0]].p_value, other.shift_tests[NAMES[0]].p_value
    assert p[0] == pytest.approx(2 * p[1])


def test_rates_without_drift():
    """Reference and stream of one law with ties, new for each of 150 streams."""
    rate, alarms, drifted = 0.1, 0, 0
    for seed in range(150):
        one = Monitor(values(400, 3 * seed + 10_000), window=50, false_alarms=rate)
        one.update(values(200, 3 * seed + 10_001))
        alarms += bool(one.alarms)
        drifted += sum(bool(r.drifted) for r in one.reports)
    assert alarms / 150 < rate + 3 * np.sqrt(rate * (1 - rate) / 150)
    assert drifted / 600 < rate + 4 * np.sqrt(rate * (1 - rate) / 600)


def test_plot(uncut):
    with pytest.raises(InputError, match="no full window"):
        monitor().plot()
    figure, [alarm] = uncut.plot(change=123), uncut.alarms
    first, second, last = figure.axes
    assert first.get_ylabel() == alarm.name == NAMES[0]
    assert "log10" in last.get_ylabel()

    def at(axes, label):
        return [ln.get_xdata()[0] for ln in axes.lines if ln.get_label().startswith(label)]

    assert [at(axes, "change, after") for axes in figure.axes] == [[123]] * 3
    assert at(first, "alarm") == [alarm.at]
    assert (at(first, "its est"), at(second, "its est")) == ([alarm.since], [])
    [marks] = [line for line in first.lines if line.get_label() == "drifted"]
    assert list(marks.get_xdata()) == [350.5 + i for i in range(0, 400, 100)]
    evidence = next(ln for ln in last.lines if ln.get_label() == f"evidence, {NAMES[0]}")
    points = dict(zip(evidence.get_xdata(), evidence.get_ydata(), strict=True))
    written = {r.last: r.evidence[NAMES[0]] for r in uncut.reports}
    assert points == {0: 0.0, alarm.at: uncut.alarm_level, **written}
    assert list(points) == sorted(points)
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(words) == len(set(words))

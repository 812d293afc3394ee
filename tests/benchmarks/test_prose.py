"""Sentences of the pages repeat numbers of records: each is formatted anew and looked for.

Numbers in words ("a fifth of the training") are compared with bounds of what the words allow.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import bdtr, betaincinv
from scipy.stats import t as student

from benchmarks.posterior.kernels import ONE_OBSERVATION, TRAINED_WEIGHTS
from benchmarks.posterior.tables import over_networks
from benchmarks.records import RESULTS, read_record
from benchmarks.report import three_numbers
from benchmarks.retrieval.evidence import best_rival
from benchmarks.variants.online_tables import METRICS, less, values

ROOT = Path(__file__).parents[2]
SMALL = RESULTS / "small"
NEW = "confirmation"
"""The part of the ablation whose networks were not looked at."""


def words(page: str) -> str:
    """The text of a page on one line."""
    return " ".join((ROOT / page).read_text().split())


def short(value: float, digits: int) -> str:
    """A number below 1 as the pages write it: .187, .27."""
    return re.sub(r"^(-?)0\.", r"\1.", f"{value:.{digits}f}")


def rows_of(record: str, **wanted: Any) -> list[dict[str, Any]]:
    rows = read_record(record)["rows"]
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def by_network(rows: list[dict[str, Any]], values: list[float]) -> dict[str, float]:
    found = defaultdict(list)
    for row, value in zip(rows, values, strict=True):
        found[row["network"]].append(value)
    return {network: float(np.mean(some)) for network, some in found.items()}


def test_search_by_the_posterior():
    def ahead(rows: list[dict[str, Any]], digits: int) -> str:
        chosen = [row["chosen"] for row in rows]
        gains = [one["posterior"]["first"] - one["mean z"]["first"] for one in chosen]
        return " ± ".join(short(number, digits) for number in over_networks(rows, gains))

    rows = rows_of("posterior", part=NEW)
    own, others = (
        ahead([r for r in rows if bool(r["foreign"]) is w], 3 - w) for w in (False, True)
    )
    text = words("docs/posterior.md")
    assert f"first item for {ahead(rows, 3)} more of the queries than the mean" in text
    assert f"for {own} more among images like the fitted ones, and {others} more" in text


def test_equal_shares():
    record = read_record("posterior")
    rows, shares = record["rows"], record["shares"]

    def ahead(share: float, rival: str) -> np.ndarray:
        at = shares.index(share)
        gaps = [
            r["by_share"]["posterior"]["first"][at] - r["by_share"][rival]["first"][at]
            for r in rows
        ]
        return np.array(list(by_network(rows, gaps).values()))

    text = words("docs/posterior.md")
    noise = np.concatenate([ahead(share, "noise") for share in (0.1, 0.25)])
    white = np.stack([ahead(share, "h whitened") for share in (0.1, 0.25)])
    most = white[:, white.min(0) >= 0.0055]
    assert noise.min() > 0
    assert noise.size == 2 * 8
    assert most.shape == (2, 7)
    assert (
        f"by {short(noise.min(), 3)} to {short(noise.max(), 3)}, and of whitening on seven, "
        f"by {short(most.min(), 3)} to {short(most.max(), 3)}" in text
    )
    assert (ahead(0.5, "noise") < 0).sum() == 1
    far = []
    for part in ("development", NEW):
        some = [row for row in rows if row["part"] == part]
        for share in (s for s in shares if s >= 0.75):
            at = shares.index(share)
            for rival in ("noise", "h whitened"):
                gaps = [
                    r["by_share"]["posterior"]["first"][at] - r["by_share"][rival]["first"][at]
                    for r in some
                ]
                far.append(over_networks(some, gaps)[0])
    assert (
        f"next to nothing** to noise and to whitened inputs: {short(max(far), 3)} at most" in text
    )
    aside = [row for row in rows if row["part"] == NEW]
    for share, rival in ((s, r) for s in (0.1, 0.25) for r in ("noise", "h whitened")):
        at = shares.index(share)
        by = {
            name: [r["by_share"][name]["first"][at] for r in aside] for name in ("posterior", rival)
        }
        gap, half = over_networks(aside, np.subtract(by["posterior"], by[rival]).tolist())
        assert 0 < gap < half
    assert "on the four networks kept aside alone this is not significant" in text


def test_a_drawn_head_finds_as_much():
    far = []
    for part in ("development", NEW):
        some = rows_of("posterior", part=part)
        for measure in ("first", "label"):
            gaps = [
                row["chosen"]["drawn z"][measure] - row["chosen"]["mean z"][measure] for row in some
            ]
            far.append(abs(over_networks(some, gaps)[0]))
    assert f"as much as the trained one, within {short(max(far), 3)} on average" in words(
        "docs/posterior.md"
    )


def test_whether_the_variance_is_true():
    counts, best = {}, 0.0
    for name in (ONE_OBSERVATION, TRAINED_WEIGHTS):
        for known in (True, False):
            some = rows_of("variance", known=known)
            gaps = by_network(some, [row[name]["rank"] - row["noise"]["rank"] for row in some])
            counts[name, known] = sum(gap > 0 for gap in gaps.values())
            assert len(gaps) == 8
            if name == TRAINED_WEIGHTS and known:
                best = max(gaps.values())
    number = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight")
    text = words("docs/posterior.md")
    trained = number[counts[TRAINED_WEIGHTS, True]]
    default, foreign = (number[counts[ONE_OBSERVATION, known]] for known in (True, False))
    assert (
        f"ahead of noise on {trained} of eight networks, by up to {short(best, 2)}; "
        f"the default on {default}, and for foreign images on {foreign}." in text
    )
    rows = read_record("variance")["rows"]
    factors = [
        max(max(row[name]["size"], 1 / row[name]["size"]) for row in rows)
        for name in (ONE_OBSERVATION, TRAINED_WEIGHTS)
    ]
    one, other = (int(np.ceil(factor)) for factor in factors)
    assert f"within a factor of {one} by default, of {other} under the other" in text


def test_the_two_priors():
    """Of the page of settings: foreign images are found better and worse, errors a little worse."""
    foreign, errors = {}, {}
    for row in read_record("posterior")["rows"]:
        some = foreign if row["foreign"] else errors
        values = row["foreign"] or row["errors"]
        some.setdefault(row["network"], []).append(
            values[ONE_OBSERVATION] - values[TRAINED_WEIGHTS]
        )
    for network, gaps in foreign.items():
        assert (np.mean(gaps) < 0) == network.startswith("kmnist"), network
    assert np.mean([np.mean(gaps) for gaps in errors.values()]) < 0
    omniglot = [
        row["foreign"]
        for row in read_record("posterior")["rows"]
        if "omniglot" in row["network"] and row["foreign"]
    ]
    assert omniglot
    for prior in (ONE_OBSERVATION, TRAINED_WEIGHTS):
        assert np.mean([row[prior] for row in omniglot]) < 0.5
    of = values_of(three_numbers.CASES[0], "r_auroc")
    numbers = [short(of[method], 3) for method in ("laplace", "nuq", "laplace, match")]
    text = words("docs/settings.md")
    assert (
        "with an AUROC of {} (.5 is guessing), the neighbours' labels (NUQ) of {}.".format(*numbers)
        in text
    )
    assert f"`match_probability` uses them too: {numbers[2]}." in text


def test_exports():
    rows = {(row["encoder"], row["what"]): row for row in read_record("export")["rows"]}
    text = words("docs/serve.md")
    mini, net = "MiniLM", "EfficientNet-Lite0"
    ms = {key: row["ms_1"] for key, row in rows.items()}
    assert (
        f"a MiniLM input takes {ms[mini, 'ONNX']:.1f} ms by ONNX, where PyTorch takes "
        f"{ms[mini, 'PyTorch']:.0f} ms" in text
    )
    assert (
        f"an EfficientNet-Lite0 input {ms[net, 'ONNX']:.1f} ms and {ms[net, 'PyTorch']:.0f} ms"
        in text
    )
    for encoder, said in ((mini, 2e-6), (net, 2e-5)):
        row = rows[encoder, "ONNX"]
        assert (
            said / 4 < max(value for key, value in row.items() if key.startswith("error_")) <= said
        )
    int8 = [rows[mini, what] for what in ("ONNX, int8 body", "ONNX, int8")]
    moved = max(row["error_mean"] for row in int8)
    novelty = max(row["error_epistemic"] for row in int8)
    assert (
        f"by up to {100 * moved:.0f} % of its largest, `epistemic` by {100 * novelty:.0f} %" in text
    )
    cosine = min(rows[net, what]["least_cosine"] for what in ("ONNX, int8 body", "ONNX, int8"))
    assert f"turn by up to {np.degrees(np.arccos(cosine)):.0f} degrees" in text
    ranks = [rows[encoder, "ONNX, int8 body"]["spearman_epistemic"] for encoder in (mini, net)]
    said = "stays at {} for MiniLM and falls to {} for EfficientNet".format(
        *(short(r, 2) for r in ranks)
    )
    assert said in words("benchmarks/costs/README.md")


def test_serving():
    rows = [row for row in read_record("serve")["rows"] if row["how"] == "served"]
    small = [row["per_second"] for row in rows if "small network" in row["problem"]]
    net = [row["per_second"] for row in rows if "EfficientNet" in row["problem"]]
    said = (
        f"A small network answers one client {small[0]:.0f} times a second, 32 clients together "
        f"{max(small):.0f} times. EfficientNet-Lite0 answers {min(net):.0f} to {max(net):.0f} times"
    )
    assert said in words("docs/serve.md")


def test_costs():
    text = words("benchmarks/costs/README.md")
    limits = read_record("limits")["fit"]
    kron = [row["whole"] / row["limit"] for row in limits if row["structure"] == "kron"]
    wide = sorted(kron + [row["ratio"] for row in read_record("aims")["fit"][:2]])
    direct = {(row["z"], row["structure"]): row for row in read_record("limits")["predict"]}
    times = [direct[z, s]["variance"] / direct[z, s]["variance_limit"]
             for z in (128, 1280) for s in ("kron", "diag")]  # fmt: skip
    assert f"{min(times):.0f} to {max(times):.0f} times its products" in text
    wide_one = direct[1280, "kron"]
    assert f"{1e3 * wide_one['variance'] / wide_one['batch']:.1f} ms an input at 1,280" in text
    alone = short(1e3 * wide_one["uncertainty"] / wide_one["batch"], 2)
    assert f"needs no such product ({alone} ms)" in text
    aims = read_record("aims")
    small = sorted(row["ratio"] for row in aims["fit"][2:])
    assert f"takes {wide[0]:.1f} to {wide[-1]:.1f} times the matrix products" in text
    assert f"small ones {small[0]:.1f} to {small[-1]:.1f} times" in text
    one, other = (
        short(row["curvature"] / row["laplace-torch"], 2) for row in read_record("peers")["rows"]
    )
    assert (
        f"takes {one} of laplace-torch's time on 20,000 points, and {other} of it on 6,000" in text
    )
    graphs = [row for row in read_record("guard")["rows"] if row["engine"] == "FAISS, HNSW"]
    more = [1e3 * (row["guarded_p50"] - row["bare_p50"]) for row in graphs]
    more.append(1e3 * (aims["query"][1]["ask"] - aims["query"][1]["search"]))
    assert f"{min(more):.1f} to {max(more):.1f} ms more than an HNSW graph alone" in text
    batch = sorted(1e3 * (row["guarded_together"] - row["bare_together"]) for row in graphs)
    assert f"and {short(batch[0], 2)} to {short(batch[-1], 2)} ms in batches of 100" in text
    own, around = aims["memory"]
    kept = max(own["kept"], around["kept"])
    assert f"adds {own['sizes']:.1f} times its vectors to what the process held" in text
    assert f"{around['sizes']:.1f} around an index of FAISS (up to {kept:.1f} where glibc" in text
    timed = ("limits", "export", "points", "posterior_costs", "peers")
    for name in (*timed, "guard", "serve", "aims", "beside"):
        assert read_record(name)["environment"]["threads"] == 1, name
    beside = {(row["n"], row["way"]): row for row in read_record("beside")["rows"]}
    guards = {key: row for key, row in beside.items() if key[1].startswith("guard")}
    longer = sorted(row["fit"] / beside[n, "crepes"]["fit"] for (n, _), row in guards.items())
    assert f"takes {longer[0]:.0f} to {longer[-1]:.0f} times the fit of prediction sets" in text
    assert (
        "finds as many foreign queries as cleanlab, or fewer, with more of its answers right"
        in text
    )
    for (n, _), row in guards.items():
        assert row["foreign"] > beside[n, "cleanlab"]["foreign"] - 0.02
        assert row["right"] > beside[n, "cleanlab"]["right"]
    large = next(row for row in graphs if row["n"] == 200_000)
    guarded, bare, together = (
        f"{1e3 * large[key]:.2g} ms" for key in ("guarded_p50", "bare_p50", "guarded_together")
    )
    said = (
        f"Among 200,000 items a guarded query takes {guarded}, the bare index {bare}. "
        f"In batches of 100 it takes {together} ("
    )
    assert said in words("README.md")
    points = {(row["structure"], row["n"]): row for row in read_record("points")["rows"]}
    micro = [points[name, 1_000_000]["cpu_seconds"] for name in ("diag", "kron")]
    peak = {f"{round(points[name, 1_000_000]['own_peak_mb'], -1):.0f}" for name in ("diag", "kron")}
    kept = max(round(row["kept_mb"], -1) for row in points.values())
    assert f"(up to {kept:,.0f} MB where glibc keeps freed blocks)" in text
    more = sorted(
        100 * (points[s, 1_000_000]["own_peak_mb"] / points[s, 100_000]["own_peak_mb"] - 1)
        for s in ("diag", "kron")
    )
    assert f"take {more[0]:.0f} to {more[1]:.0f} % more memory, since features go to disk" in text
    diagonal, kronecker = (f"{each:.0f} \u00b5s" for each in micro)
    assert f"takes {diagonal} a point with the diagonal and {kronecker} with" in text
    assert f"`epistemic` included, and {' to '.join(sorted(peak))} MB" in text
    took = {row["numbers"]: row["search"] for row in read_record("posterior_costs")["rows"]}
    assert "128 numbers are searched in less than half the time of 64" in words("docs/posterior.md")
    assert took[128] < 0.5 * took[64]


def test_online():
    """Detection at three numbers no better, at 64 worse."""
    rows = {size: rows_of("online", embedding_size=size) for size in (3, 64)}
    online = {size: "prior 1000" if size == 3 else "prior 100, 4 draws" for size in rows}
    post_hoc = {3: "post-hoc fixed, prior 1000", 64: "post-hoc fixed, prior 1"}

    def gaps(size: int) -> list[list[float]]:
        return [
            less(rows[size], online[size], post_hoc[size], METRICS[f"AUROC {x} ↑"])
            for x in ("mnist", "kmnist")
        ]

    low, high = (short(float(np.mean(gap)), 2) for gap in sorted(gaps(3), key=np.mean)[::-1])
    worse, worst = (short(-float(np.mean(gap)), 2) for gap in sorted(gaps(64), key=np.mean)[::-1])
    text = words("benchmarks/variants/README.md")
    assert f"no better ({low} to {high} AUROC, within the error of three seeds)" in text
    for gap in gaps(3):
        assert abs(np.mean(gap)) < student.ppf(0.975, 2) * np.std(gap, ddof=1) / len(gap) ** 0.5
    assert f"With 64 numbers it costs {worse} to {worst} AUROC" in text
    ece = METRICS["ECE ↓"]
    plain, fitted, plain_64, fitted_64 = (
        short(float(np.mean(values(rows[size], name, ece))), 3)
        for size in (3, 64)
        for name in ("plain", post_hoc[size])
    )
    assert (
        f"takes the ECE from {plain} to {fitted} at three numbers, and from {plain_64} to "
        f"{fitted_64} at 64" in text
    )
    of_64 = [
        short(float(np.mean(values(rows[64], each[64], ece))), 3) for each in (online, post_hoc)
    ]
    of_3 = [short(float(np.mean(values(rows[3], each[3], ece))), 3) for each in (online, post_hoc)]
    assert "at 3 numbers (an ECE of {}, post-hoc {})".format(*of_3) in text
    assert "at 64 (an ECE of {}, post-hoc {})".format(*of_64) in text
    text = words("docs/online.md")
    assert f"by {worse} to {worst} of AUROC" in text
    assert "At three numbers it finds them no better" in text
    assert "error is {}, of a post-hoc fit with the same approximation {}".format(*of_64) in text


def test_simulated_guarantees():
    text = words("benchmarks/retrieval/README.md")
    rows = [row for row in read_record("fitted")["rows"] if row["cross_fit"]]
    names = [f"{kind}, {share}" for kind in ("match", "label") for share in (0.8, 0.9, 0.95)]

    def most(which: list[str]) -> str:
        return f"{100 * max(row[name]['broken'] for row in rows for name in which):.1f} %"

    ninety, recall = most(["match, 0.9", "label, 0.9"]), most(["recall, 0.9"])
    assert (
        f"at most {most(names)} broke a precision ({ninety} one of 90 %), and {recall} a recall"
        in text
    )
    assert f"as here by default, at most {most(names)} did." in words("docs/promises.md")
    record = read_record("guarantees")
    ends = record["worst upper end, of delta"]
    worst = max(ends["others"], ends["own"])
    said = (
        f"broken at most {short(worst, 2)} times as often as allowed (upper end of a 95 % "
        f"interval, the worst of {len(record['rows'])} cases)"
    )
    assert said in text
    nuclei = next(row for row in read_record("confirm")["rows"] if row["problem"] == "cell nuclei")
    better = nuclei["+ class model"]["mean"] - nuclei["+ posterior variance"]["mean"]
    assert f"the class model without the other numbers is {short(better, 3)} better" in text


def test_power():
    rows = {(row["world"], row["n"]): row for row in read_record("power")["rows"]}
    text = words("docs/promises.md")
    ours = [row["ours"]["broken"] for row in rows.values()]
    assert f"broke it in {100 * min(ours):.1f} % to {100 * max(ours):.1f} %." in text
    pairs = rows["pairs, 90%", 300]
    assert f"names its threshold ({100 * pairs['one threshold']:.1f} % at 90 %)" in text
    for world in ("pairs, 90%", "pairs, 95%"):
        row = rows[world, 300]
        names = ("one threshold", "ours", "LTT, HB", "MAPIE")
        answered = [row[n] if n == "one threshold" else row[n]["answered"] for n in names]
        assert max(answered) < 0.9 * row["oracle"]
    few = [rows["few right first hits, 30%", n] for n in (200, 600, 2_000)]
    assert all(row["MAPIE"]["answered"] > row["ours"]["answered"] for row in few[:2])
    assert few[2]["MAPIE"]["answered"] < few[2]["ours"]["answered"]


def test_evidence():
    rows = read_record("evidence")["rows"]
    ahead = {row["problem"]: row[f"ahead: {best_rival(row)}"] for row in rows}
    level = [problem for problem, gain in ahead.items() if abs(gain["mean"]) <= gain["half"]]
    *first, last = level
    most = [gain["mean"] for gain in ahead.values() if gain["mean"] > gain["half"]]
    gains = [row["gain: posterior variance"]["mean"] for row in rows]
    variance = f"{short(min(gains), 3)} to +{short(max(gains), 3)}"
    text = words("benchmarks/retrieval/README.md")
    assert (len(most), len(level), len(rows)) == (5, 4, 9)
    assert (
        "ahead of the best of eleven rivals on five of nine problems, by "
        f"{short(min(most), 3)} to {short(max(most), 3)} AUROC. On {', '.join(first)} and {last}"
        in text
    )
    page = words("README.md")
    assert f"on {', '.join(first)} and {last} the two are level." in page
    assert "comes from a model of the classes, and on fashion-mnist unseen from `epistemic`" in page
    for row in (row for row in rows if row["problem"] not in level):
        by_classes = row["+ class model"]["mean"] - row[best_rival(row)]["mean"]
        assert (by_classes > 0) == (row["problem"] != "fashion-mnist, unseen"), row["problem"]
    rivals = {row["problem"]: best_rival(row) for row in rows}
    named = {problem: rival for problem, rival in rivals.items() if rival != "probe"}
    assert named == {"fashion-mnist": "four", "texts": "four", "fashion-mnist, unseen": "LDA"}
    said = (
        "The best rival is the probe on six problems, the four numbers of the neighbours on "
        "fashion-mnist and texts, LDA on fashion-mnist's unseen classes."
    )
    assert said in text
    said = "ahead of the best rival on five of nine problems, and level on four ([evidence]"
    assert said in words("benchmarks/README.md")
    confirming = [row for row in rows if not row["developed on"]]
    assert [row["problem"] for row in confirming] == ["omniglot", "emoji", "texts"]
    assert f"Omniglot, was not ({short(ahead['omniglot']['mean'], 3)})" in text
    assert f"posterior's variance adds {variance}. " in text
    assert f"adds little here ({variance}, [step by step]" in words("README.md")
    nuclei = next(r for r in read_record("confirm")["rows"] if r["problem"] == "cell nuclei")
    behind = nuclei[f"ahead: {best_rival(nuclei)}"]
    probe = f"{short(-behind['mean'], 3)} ± {short(behind['half'], 3)}"
    assert best_rival(nuclei) == "probe"
    assert f"better, and a probe {probe}." in text


def test_a_device():
    of = next(r for r in read_record("speed_gpu")["agreement"] if r["dtype"] == "torch.float32")
    uncertainty, epistemic = (
        f"{of[name]:.0e}".replace("e-0", "e-")
        for name in ("uncertainty_largest", "epistemic_largest")
    )
    assert (
        f"agree with float64 on a CPU to {uncertainty}, `epistemic` to {epistemic} standard"
        in words("benchmarks/costs/README.md")
    )


def test_growing():
    assert "no row excludes that 5 % are broken" in words("docs/promises.md")
    for row in read_record("growing")["rows"]:
        assert row["low"] <= 0.05 <= row["high"]


def test_twenty():
    summary, text = read_record("twenty")["summary"], words("benchmarks/retrieval/README.md")
    right, n, target = summary["answers right"], summary["answered"], summary["precision"]
    highest = betaincinv(right + 1, n - right, 0.95)
    assert f"The one-sided 95 % interval ends at {100 * highest:.1f} %" in text
    chance = bdtr(right, n, target)
    assert f"so few of {n} would be in {100 * chance:.1f} % of cases" in text


def test_the_comparison():
    """Its sentences, of the record that its tables are of."""
    text = words("benchmarks/README.md")
    ours = {case: values_of(case, "r_auroc") for case in three_numbers.CASES}
    for case, of in ours.items():
        assert of["laplace, match"] == max(of.values()), case
    behind = []
    for case in three_numbers.CASES:
        rows = three_numbers.rows_of(case)
        for metric in three_numbers.ood_metrics(rows):
            of = values_of(case, metric)
            best = max(of[name] for name in three_numbers.DETECTORS if name in of)
            behind.append(best - of["laplace, epistemic"])
    assert text.count(f"within {short(max(behind), 3)} of the best of eight detectors") == 2
    fashion = three_numbers.CASES[0]
    of = read_record("lam", SMALL)["comparisons"]["fashion-mnist"]["r_auroc"]["laplace minus"]
    gap = of["deep ensemble"]
    assert f"the difference: {short(gap['low'], 3)} to {short(gap['high'], 3)})" in text
    foreign = [values_of(fashion, metric) for metric in ("auroc mnist", "auroc kmnist")]
    assert all(each["laplace"] > each["deep ensemble"] for each in foreign)
    assert "at a fifth of the training" in text
    seconds = defaultdict(list)
    for row in three_numbers.rows_of(fashion):
        seconds[row["method"]].append(row["cost"]["fit"]["cpu_seconds"])
    trained = np.mean(seconds["metric learning, 1/norm"]) + np.mean(seconds["laplace"])
    share = trained / np.mean(seconds["deep ensemble"])
    assert 0.18 < share < 0.25


def test_the_comparison_in_words():
    """Who is calibrated, which posteriors detect less, and what ``near`` and ``far`` are for."""
    fashion, birds, species = three_numbers.CASES[:3]
    ece = values_of(fashion, "ece")
    assert ece["laplace"] > max(ece[name] for name in ("pfe", "hib", "mcinfonce", "deep ensemble"))
    rows = {case: three_numbers.rows_of(case) for case in three_numbers.CASES}
    of = {c: [values_of(c, name) for name in three_numbers.ood_metrics(rows[c])] for c in rows}
    for case in (fashion, birds):
        for each in of[case]:
            assert each["laplace"] > each["laplace, evidence"]
    for each in of[fashion]:
        assert each["laplace"] > max(each["laplace, diagonal"], each["laplace, clipped"])
    for each in of[birds]:
        detectors = [each[name] for name in three_numbers.DETECTORS if name in each]
        assert each["laplace, far"] > max(detectors) > each["laplace, near"]
    (new,) = of[species]
    assert new["laplace, near"] > max(new[name] for name in three_numbers.DETECTORS if name in new)
    assert new["laplace, far"] < new["laplace, near"] - 0.1
    texts = three_numbers.CASES[-1]
    for (each,) in (of[species], of[texts]):
        best = max(each[name] for name in three_numbers.DETECTORS if name in each)
        assert each["laplace, epistemic"] > best


def test_where_labels_are_not_read():
    text = words("benchmarks/README.md")
    of = values_of(three_numbers.Case("url", "cub", "", True), "r_auroc")
    match = of.pop("laplace, match")
    least, most = min(of.values()), max(of.values())
    assert f"near guessing (R-AUROC {short(least, 2)} to {short(most, 2)})" in text
    assert match > most + 0.1
    new = values_of(three_numbers.Case("url", "cub", "", True), "new classes")
    assert new["laplace, tuned"] < new["laplace"]
    tuned, default = short(new["laplace, tuned"], 2), short(new["laplace"], 2)
    assert f"less well than the default (AUROC {tuned}, not {default})" in text
    assert sorted(new, key=new.get)[-2:] in (
        ["laplace, near", "laplace, epistemic"],
        ["laplace, epistemic", "laplace, near"],
    )


def test_where_people_disagree():
    of = values_of(three_numbers.Case("human", "cifar10h-soft", "", True), "entropy rank")
    most = [value for value in of.values() if value > 0.2]
    assert len(most) > 0.8 * len(of)
    said = (
        f"Most uncertainties follow people's disagreement by {short(min(most), 2)} to "
        f"{short(max(most), 2)}, ours among them; HIB and nivMF do not"
    )
    assert said in words("benchmarks/README.md")
    assert min(value for name, value in of.items() if name.startswith("laplace")) > 0.2
    assert max(of["hib"], of["nivmf"]) < 0.05


def test_corrupted_images():
    """Of the severity: who follows it, and that settings searched for errors do not."""
    of = values_of(three_numbers.Case("corruption", "cifar10", "", True), "severity mean")
    epistemic, entropy = of.pop("laplace, epistemic"), of.pop("cross-entropy")
    assert abs(epistemic - entropy) < 0.01
    assert min(epistemic, entropy) > max(of.values()) + 0.01
    text = words("benchmarks/README.md")
    default, tuned = (short(of[name], 2) for name in ("laplace", "laplace, tuned"))
    assert f"the default does ({default}), settings that were searched" in text
    assert f"on validation data do not ({tuned})" in text
    assert "MCInfoNCE hardly does" in text
    assert abs(of["mcinfonce"]) < 0.1


def test_images_and_texts():
    """The generality that regions learn, on keywords of the training and on new ones."""
    rows = rows_of("image_text", method="prolip-regions")
    ranks = [
        short(float(np.mean([row[part]["spearman"] for row in rows])), 2)
        for part in ("trained keywords", "new keywords")
    ]
    said = "follows it ({} on these, {} on new ones)".format(*ranks)
    assert said in words("benchmarks/image_text/README.md")


def values_of(case: three_numbers.Case, metric: str) -> dict[str, float]:
    """Method -> mean over seeds."""
    found = three_numbers.values(three_numbers.rows_of(case), [metric])
    return {name: one.mean for name, one in found.items()}


def test_an_earlier_layer_on_the_first_page():
    rows = [row for row in read_record("layers")["rows"] if "ranking" in row]
    rows = [row for row in rows if row["set"].startswith("foreign")]
    mean, alone, noise, ours = (
        short(float(np.mean([r["first"] for r in rows if r["ranking"] == name])), 3)
        for name in ("mean", "posterior", "noise and layer", "auto")
    )
    said = f"raises {alone} to {ours} ({noise} with noise; {mean} by the embedding)"
    assert said in words("README.md")

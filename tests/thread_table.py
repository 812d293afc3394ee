"""One embedder called from many threads: how many calls fail, how many answers differ, how fast.

``python -m tests.thread_table`` prints a row for each kind of head and number of threads, beside
plain calls of the model itself. Errors and wrong answers are counted while threads are switched far
more often than Python does by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from laplace_metric import LaplaceEmbedder
from laplace_metric.search import HNSW, IVF, Index

Answer = Callable[[Tensor], Tensor]


@dataclass
class Outcome:
    """Of calls from many threads."""

    calls: int = 0
    errors: int = 0
    wrong: int = 0
    seconds: float = 0.0
    first_error: BaseException | None = None


def hammered(
    answer: Answer, inputs: Sequence[Tensor], n_threads: int, calls: int, switch: float = 1e-5
) -> Outcome:
    """``calls`` answers of each of ``n_threads`` threads, each compared with that of one thread."""
    expected = [answer(x) for x in inputs]
    outcome, start = Outcome(), threading.Barrier(n_threads + 1)
    lock, interval = threading.Lock(), sys.getswitchinterval()

    def work(offset: int) -> None:
        start.wait()
        for i in range(offset, offset + calls):
            error, wrong = None, False
            try:
                value = answer(inputs[i % len(inputs)])
                wrong = not torch.allclose(value, expected[i % len(inputs)], rtol=1e-5, atol=1e-7)
            except Exception as failure:
                error = failure
            with lock:
                outcome.calls += 1
                outcome.errors += error is not None
                outcome.wrong += wrong
                outcome.first_error = outcome.first_error or error

    threads = [threading.Thread(target=work, args=(7 * i,)) for i in range(n_threads)]
    sys.setswitchinterval(switch)
    try:
        for thread in threads:
            thread.start()
        start.wait()
        began = time.perf_counter()
        for thread in threads:
            thread.join()
        outcome.seconds = time.perf_counter() - began
    finally:
        sys.setswitchinterval(interval)
    return outcome


class Normalized(nn.Module):
    """A backbone with dropout and batch norm, a linear layer, and l2 normalisation."""

    def __init__(self, wide: int = 32) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, wide), nn.BatchNorm1d(wide), nn.Dropout(0.5))
        self.more = nn.Sequential(*[nn.Sequential(nn.Linear(wide, wide), nn.ReLU())] * 3)
        self.fc = nn.Linear(wide, 6)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.normalize(self.fc(self.more(self.body(x))), dim=-1)


def problem(kind: str, wide: int = 32) -> tuple[LaplaceEmbedder, list[Tensor]]:
    """A fitted embedder of a kind of ``KINDS``, and batches to call it with."""
    torch.manual_seed(0)
    model: nn.Module = Normalized(wide)
    head, settings = KINDS[kind]
    if kind == "torch.func":
        tail = nn.Sequential(nn.Linear(wide, 12), nn.LayerNorm(12), nn.Linear(12, 6))
        model = nn.Sequential(*model.children())[:2].append(tail)
        head = tail
    model.train(kind == "train mode")
    x, y = torch.randn(60, 8), torch.arange(60) % 4
    embedder = LaplaceEmbedder(model, head=head, **settings).fit([(x, y)], progress=False)
    return embedder, list(torch.randn(11, 16, 8))


KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "inside": (None, {}),
    "append": ("append", {}),
    "train mode": (None, {"structure": "diag"}),
    "torch.func": (None, {"backend": "torch.func", "structure": "diag"}),
}


THREADS = (1, 2, 8)
COUNTED = ("calls", "errors", "wrong")
ENGINES: dict[str, Any] = {"flat": "flat", "IVF": IVF(lists=4, probes=4), "HNSW": HNSW(ef=400)}


class Changes:
    """A thread that adds items to an index and removes them, while the ``with`` lasts."""

    def __init__(self, index: Index, x: Tensor) -> None:
        self.index, self.x, self.ids = index, x, list(range(10_000, 10_000 + len(x)))
        self.thread, self.done, self.count = threading.Thread(target=self._work), False, 0

    def answer(self, inputs: Sequence[Tensor]) -> Answer:
        """A search; 1 if it is that of the index without the items or with them, else 0."""
        before = self._searched(inputs)
        self.index.add(self.x, ids=self.ids)
        after = self._searched(inputs)
        self.index.remove(self.ids)

        def one_of_two(x: Tensor) -> Tensor:
            value = self.index.search(x, k=5).distance_sd
            states = (state[id(x)] for state in (before, after))
            right = any(torch.allclose(value, e, rtol=1e-5, atol=1e-7) for e in states)
            return torch.tensor(float(right))

        return one_of_two

    def _searched(self, inputs: Sequence[Tensor]) -> dict[int, Tensor]:
        return {id(x): self.index.search(x, k=5).distance_sd for x in inputs}

    def _work(self) -> None:
        while not self.done:
            self.index.add(self.x, ids=self.ids)
            self.index.remove(self.ids)
            self.count += 2

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.done = True
        self.thread.join()


def show(name: str, n_threads: int, right: Outcome, timed: Outcome, plain: object) -> None:
    """Print a row: what was counted while threads are switched often, and the speed otherwise."""
    counts = f"{right.calls:,} | {right.errors} | {right.wrong}"
    print(
        f"| {name} | {n_threads} | {counts} | {timed.calls / timed.seconds:.0f} | {plain} |",
        flush=True,
    )


def beside_changes(calls: int) -> list[dict[str, Any]]:
    """Searches while another thread adds and removes items: counts of each engine."""
    rows = []
    for name, engine in ENGINES.items():
        embedder, inputs = problem("append", wide=512)
        x = torch.cat(inputs)
        for n_threads in THREADS:
            index = embedder.index(x[:160], engine=engine, progress=False)
            outcomes, changes = [], 0
            for switch in (1e-5, 5e-3):
                one = Changes(index, x[160:])
                answer = one.answer(inputs)
                with one:
                    outcomes.append(hammered(answer, inputs, n_threads, calls // n_threads, switch))
                changes += one.count
            show(
                f"search beside add and remove, {name}", n_threads, *outcomes, f"{changes} changes"
            )
            counts = {key: sum(getattr(o, key) for o in outcomes) for key in COUNTED}
            rows.append({"engine": name, "threads": n_threads, **counts, "changes": changes})
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1600, help="of a row")
    parser.add_argument("--changes", type=Path, help="write only searches beside changes, as JSON")
    options = parser.parse_args()
    calls = options.calls
    torch.set_num_threads(1)
    print("| call | threads | calls | errors | wrong | calls/s | model alone/s |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    if options.changes is not None:
        options.changes.write_text(json.dumps(beside_changes(calls // 2), indent=1) + "\n")
        return
    for kind in KINDS:
        embedder, inputs = problem(kind, wide=512)
        index = embedder.index(torch.cat(inputs), progress=False)

        def plain(x: Tensor, model: nn.Module = embedder.model) -> Tensor:
            with torch.no_grad():
                return model(x)

        answers: dict[str, Answer] = {
            "embedder(x)": lambda x, e=embedder: e(x).variance,  # type: ignore[misc]
            "index.search": lambda x, i=index: i.search(x, k=5).distance_sd,  # type: ignore[misc]
        }
        for name, answer in answers.items():
            for n_threads in THREADS:
                right = hammered(answer, inputs, n_threads, calls // n_threads)
                timed = hammered(answer, inputs, n_threads, calls // 2 // n_threads, switch=5e-3)
                model = hammered(plain, inputs, n_threads, calls // 2 // n_threads, switch=5e-3)
                show(
                    f"{name}, {kind}", n_threads, right, timed, f"{model.calls / model.seconds:.0f}"
                )
    beside_changes(calls // 2)
    print(f"\nload {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()

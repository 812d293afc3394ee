"""Go through tasks, seeds and methods; do what is not done."""

from __future__ import annotations

import gc
import warnings
from argparse import Namespace
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from tqdm.auto import tqdm

from benchmarks.engine.experiment import Experiment, extra_parameters, resolved
from benchmarks.engine.fitting import Fitting, best, tune
from benchmarks.methods import METHODS, Entry
from benchmarks.methods.code import code_of
from benchmarks.methods.entry import Settings
from benchmarks.protocols.table import PROTOCOLS, Protocol
from benchmarks.records import Store, thousandths
from benchmarks.sizes import SIZES, TUNING_SEED
from benchmarks.tasks import FOLDED, READS, TASKS, Task, Workspace, build
from benchmarks.tasks.frozen import FOLDS, has
from benchmarks.timing import usage
from laplace_metric.errors import InputError, LaplaceMetricError, LaplaceMetricWarning


@dataclass(frozen=True)
class Job:
    """One training, or fit, and the protocols that want it."""

    task: str
    seed: int
    method: str
    protocols: tuple[Protocol, ...]


class Runner:
    """Runs jobs; every tuning and every run is a file in the cache."""

    def __init__(self, space: Workspace) -> None:
        self.space = space
        self.store = Store(space.cache / f"runs-{space.size.name}")

    def jobs(self, protocols: Iterable[Protocol]) -> Iterator[Job]:
        """What protocols want: task by task, seed by seed."""
        chosen = tuple(protocols)
        for task in TASKS:
            asking = [p for p in chosen if self._asks(p, task)]
            for seed in range(self._seeds(task)):
                for name in METHODS:
                    wanted = tuple(p for p in asking if p.wants(task, name))
                    if wanted:
                        yield Job(task, seed, name, wanted)

    def _asks(self, protocol: Protocol, task: str) -> bool:
        size = self.space.size.name
        if task in protocol.if_there:
            return size != "smoke" and has(self.space, READS.get(task, task))
        return task in protocol.tasks[size]

    def _seeds(self, task: str) -> int:
        return min(FOLDS, self.space.size.seeds) if task in FOLDED else self.space.size.seeds

    def run(self, jobs: Iterable[Job]) -> None:
        """Do the jobs; interrupted, nothing that is finished is lost."""
        wanted = list(jobs)
        if not wanted:
            raise InputError("nothing matches: no protocol asks these methods on these tasks.")
        todo = [job for job in wanted if not self._finished(job)]
        failed: list[str] = []
        with tqdm(todo, disable=not self.space.progress, smoothing=0.1) as bar:
            for job in bar:
                bar.set_description(f"{job.task} {job.seed} {job.method}")
                task = build(job.task, self.space, job.seed)
                try:
                    self.do(job, task)
                except (LaplaceMetricError, RuntimeError) as error:
                    failed.append(f"{job.task}, seed {job.seed}, {job.method}: {error}")
                gc.collect()
        if failed:
            raise LaplaceMetricError(f"{len(failed)} of {len(todo)} failed. First: {failed[0]}")

    def lines(self, jobs: Iterable[Job]) -> Iterator[str]:
        """Yield a line of numbers for each measurement."""
        for job in jobs:
            for protocol in job.protocols:
                found = self.store.read(protocol.name, job.task, job.method, job.seed)["metrics"]
                numbers = (f"{name} {_digits(cell['value'])}" for name, cell in found.items())
                yield f"{job.task}, seed {job.seed}, {job.method}: {', '.join(numbers)}"

    def _finished(self, job: Job) -> bool:
        """Whether every protocol has its run; one of another size is an error."""
        size = asdict(self.space.size)
        for protocol in job.protocols:
            words = (protocol.name, job.task, job.method, job.seed)
            if not self._current(job.method, *words):
                return False
            ignored = () if protocol.name == "corruption" else ("corrupted",)
            self.store.expect({k: v for k, v in size.items() if k not in ignored}, "size", *words)
        return True

    def _current(self, method: str, *words: object) -> bool:
        """Whether a piece of work is done, by the present code of the method."""
        return self.store.has(*words) and self.store.read(*words).get("code") == code_of(method)

    def do(self, job: Job, task: Task) -> None:
        """Tune if need be, fit, and measure what has not been measured."""
        entry = METHODS[job.method]
        settings = self.choice(entry, task, job.seed)
        todo = [p for p in job.protocols if not self._has(p, job, settings)]
        experiment, row = self._fitted(entry, task, job.seed, settings)
        for protocol in todo:
            with usage(self.space.device) as took:
                measured = protocol.measure(experiment).to_json()
            content = {"protocol": protocol.name, **row, "measuring": took, **measured}
            self.store.write(content, protocol.name, job.task, job.method, job.seed)

    def _has(self, protocol: Protocol, job: Job, settings: Settings) -> bool:
        """Whether a run is there; one of other settings is an error."""
        words = (protocol.name, job.task, job.method, job.seed)
        if done := self._current(job.method, *words):
            self.store.expect(settings, "settings", *words)
        return done

    def _fitted(
        self, entry: Entry, task: Task, seed: int, settings: Settings
    ) -> tuple[Experiment, dict[str, Any]]:
        """What is measured, and what is noted of it in every protocol's run."""
        fitting = Fitting(self.space, task, seed, self.space.size.rounds)
        network = self._network(entry, fitting, seed)
        with usage(self.space.device) as took:
            method, losses = fitting.fit(entry, settings, network)
        base = self._base(entry, task, seed)
        experiment = Experiment(entry, method, task, self.space, seed, base)
        asked = {**experiment.timed[1], "n": len(task.test)}
        return experiment, {
            "task": task.name,
            "method": entry.name,
            "code": code_of(entry.name),
            "group": entry.group,
            "seed": seed,
            "size": asdict(self.space.size),
            "settings": settings,
            "base": base,
            "resolved": resolved(method),
            "losses": losses,
            "cost": {"fit": took, "queries": asked, "extra_parameters": extra_parameters(method)},
        }

    def choice(self, entry: Entry, task: Task, seed: int) -> Settings:
        """The tuned settings of a method."""
        if isinstance(entry.space, str):
            return self.choice(METHODS[entry.space], task, seed)
        if entry.default is None:
            return {}
        if task.tuned_on is not None:
            return self.choice(entry, build(task.tuned_on, self.space, seed), seed)
        words: tuple[object, ...] = ("tuned", task.name, entry.name)
        words += (seed,) if task.own_tuning else (TUNING_SEED,)
        if not self._current(entry.name, *words):
            self.store.write(self._tuned(entry, task, seed), *words)
        return best(self.store.read(*words)["tried"])

    def _tuned(self, entry: Entry, task: Task, seed: int) -> dict[str, Any]:
        """Shorter trainings from another seed than those that are measured."""
        fitting = Fitting(self.space, task, TUNING_SEED, self.space.size.short)
        with usage(self.space.device) as took:
            tried = tune(entry, fitting, self._network(entry, fitting, seed))
        code = code_of(entry.name)
        return {"task": task.name, "method": entry.name, "code": code, "tried": tried, "cost": took}

    def _network(self, entry: Entry, fitting: Fitting, seed: int) -> Any:
        """New weights, or for a post-hoc method those that metric learning trained."""
        base = self._base(entry, fitting.task, seed)
        return fitting.trained_network(base) if base else fitting.network()

    def _base(self, entry: Entry, task: Task, seed: int) -> Settings:
        """Settings of the network under a post-hoc method; none where it trains its own."""
        if entry.base is None or task.pretrained:
            return {}
        return self.choice(METHODS[entry.base], task, seed)


def _digits(value: float | None) -> str:
    return "n/a" if value is None else thousandths(value)


def run(options: Namespace) -> None:
    """The protocols that were asked for, on their tasks."""
    warnings.simplefilter("ignore", LaplaceMetricWarning)  # clipped curvature and the like
    space = Workspace(
        options.data, options.cache, SIZES[options.size], options.device, options.download,
        not options.quiet,
    )  # fmt: skip
    runner = Runner(space)
    jobs = [
        job
        for job in runner.jobs(PROTOCOLS[name] for name in options.protocols)
        if (options.methods is None or job.method in options.methods)
        and (options.tasks is None or job.task in options.tasks)
    ]
    runner.run(jobs)
    if options.methods is not None:
        print(*runner.lines(jobs), sep="\n")
        print(f"with curves: python -m benchmarks report --size {options.size}")

"""Claims of MCInfoNCE (Kirchhof et al. 2023a)."""

from __future__ import annotations

from functools import partial

from benchmarks.report.claims import measured as ours
from benchmarks.report.claims.criterion import OTHER, SHORTER, Claim, Ours, Side, Value
from benchmarks.variants import people

FEW = "2,200 steps (there 100,000), 8 and 32 draws (there 512)"
MORE = "2,200 steps, 64 and 128 draws, three seeds"
STEPS = "2,200 steps (there 100,000)"
FROZEN = "a head on frozen features; there the whole network learns"
PROCESS = {"setting": "ambiguous", "loss": "mcinfonce"}
KINDS = {"location": "location", "certainty": "kappa"}


def recovered(of: str, number: str, loss: str = "mcinfonce", setting: str = "ambiguous") -> Ours:
    """Return a number of the controlled experiment with few draws."""
    return Ours.of_seeds(ours.of_rows("recovery", (of, number), loss=loss, setting=setting))


def level(of: str, number: str) -> Ours:
    """Return a number of the controlled experiment with more draws."""
    return Ours.of_seeds(ours.of_rows("levels", (of, number), loss="mcinfonce"))


def of_loss(loss: str, of: str, number: str) -> Ours:
    """Return a number of the controlled experiment with another loss."""
    return Ours.of_seeds(ours.of_rows("losses", (of, number), loss=loss))


def kappas_less(loss: str) -> Ours:
    """Return the rank of kappas by a loss less that by MCInfoNCE, seed by seed."""
    first = ours.of_rows("losses", ("certainty", "rank"), loss=loss)
    other = ours.of_rows("recovery", ("certainty", "rank"), **PROCESS)[: len(first)]
    return Ours.of_seeds([a - b for a, b in zip(first, other, strict=True)])


def fewer_draws() -> Ours:
    """Return the error of kappa with few draws less that with more, seed by seed."""
    more = ours.of_rows("levels", ("certainty", "rmse"), loss="mcinfonce")
    few = ours.of_rows("recovery", ("certainty", "rmse"), **PROCESS)[: len(more)]
    return Ours.of_seeds([a - b for a, b in zip(few, more, strict=True)])


def location_less() -> Ours:
    """Return by how much InfoNCE errs more in the location than MCInfoNCE, seed by seed."""
    return ours.less(
        ours.reader("recovery", "location", "rmse", setting="ambiguous", loss="infonce"),
        ours.reader("recovery", "location", "rmse", **PROCESS),
    )


def dimensions_less(of: str) -> Ours:
    """Return the ranks with 40 dimensions less those with 10, seed by seed."""
    return ours.less(
        ours.reader("recovery", of, "rank", setting="published pairs, 40 dimensions",
                    loss="mcinfonce"),
        ours.reader("recovery", of, "rank", **PROCESS),
    )  # fmt: skip


def human(method: str, metric: str) -> Ours:
    """Return a number of the comparison on CIFAR-10H."""
    return Ours.of_seeds(ours.small("human", "cifar10h-soft", method, metric))


def hib(metric: str) -> Ours:
    """Return a number of the HIB of eq. 54 on CIFAR-10H."""
    return Ours.of_seeds(ours.of_rows("people_hib", ("metrics", metric, "value")))


def recall_less() -> Ours:
    """Return by how much MCInfoNCE retrieves better than InfoNCE on CIFAR-10H."""
    first, second = (
        partial(ours.small, "human", "cifar10h-soft", name, "recall@1")
        for name in ("mcinfonce", "infonce, 1/norm")
    )
    return ours.less(first, second)


def chosen(labels: str, metric: str) -> Ours:
    """Return a number of the model that crops choose, with kappa by the norm."""
    wanted = {"labels": labels, "concentration": people.CONCENTRATION, "model": people.CHOSEN}
    return Ours.of_seeds(ours.of_rows("people", (metric,), **wanted))


ENTROPY, CROPS = "entropy rank", "crop rank"
CLAIMS = (
    Claim("table 1", "rank of locations", ".99", Value(0.99, 0.01, chance=0),
          partial(level, "location", "rank"), SHORTER, MORE),
    Claim("table 1", "rank of kappas", ".82 ± .04", Value(0.82, 0.01, 0.04, chance=0),
          partial(level, "certainty", "rank"), SHORTER, MORE),
    Claim("table 1", "error of kappa, RMSE (true kappa 16 to 32)", "6.15 ± .61",
          Value(6.15, 0.01, 0.61), partial(level, "certainty", "rmse"), SHORTER, MORE),
    Claim("table 1", "error of kappa, RMSE", "6.15 ± .61", Value(6.15, 0.01, 0.61),
          partial(recovered, "certainty", "rmse"), SHORTER, FEW),
    Claim("table 1", "rank of kappas", ".82 ± .04", Value(0.82, 0.01, 0.04, chance=0),
          partial(recovered, "certainty", "rank"), SHORTER, FEW),
    *(Claim("table 3", f"{name}, rank of {kind}s", said, value,
            partial(of_loss, loss, of, "rank"), SHORTER, STEPS)
      for loss, name, of, kind, said, value in (
          ("elk times 20", "ELK", "location", "location", "1.00", Value(1.0, 0.01, chance=0)),
          ("elk times 20", "ELK", "certainty", "kappa", ".92", Value(0.92, 0.01, chance=0)),
          ("elk", "ELK without its factor 20", "location", "location", "1.00",
           Value(1.0, 0.01, chance=0)),
          ("elk", "ELK without its factor 20", "certainty", "kappa", ".92",
           Value(0.92, 0.01, chance=0)),
          ("hib", "HIB of eq. 54", "location", "location", ".82 ± .03",
           Value(0.82, 0.01, 0.03, chance=0)),
          ("hib", "HIB of eq. 54", "certainty", "kappa", "-.02 ± .09", Value(-0.02, 0.01, 0.09)))),
    *(Claim("table 3", f"{name}, error of kappa, RMSE", "21.70 ± .31", Value(21.70, 0.01, 0.31),
            partial(of_loss, loss, "certainty", "rmse"), SHORTER, where)
      for loss, name, where in (
          ("elk times 20", "ELK", STEPS),
          ("elk", "ELK without its factor 20",
           f"{STEPS}; there times 20, which changes the level of kappa"))),
    *(Claim("table 3", f"rank of kappas, {name} less MCInfoNCE", said, side,
            partial(kappas_less, loss), SHORTER, STEPS)
      for loss, name, said, side in (
          ("elk times 20", "ELK", "+.10", Side(low=0)),
          ("elk", "ELK without its factor 20", "+.10", Side(low=0)),
          ("hib", "HIB of eq. 54", "-.84", Side(high=0)))),
    Claim("figure 3", "more draws bring kappa to its level: fall of the RMSE", "above 0",
          Side(low=0), fewer_draws, SHORTER, "32 draws of kappa less 128"),
    *(Claim("table 8", f"a shared backbone, rank of {name}s", said, value,
            partial(recovered, of, "rank", "mcinfonce, shared backbone"), SHORTER, FEW)
      for (of, name), said, value in zip(KINDS.items(), (".99", ".87 ± .02"),
                                         (Value(0.99, 0.01, chance=0),
                                          Value(0.87, 0.01, 0.02, chance=0)), strict=True)),
    *(Claim("figure 4", f"encoder of {n} numbers for 10, rank of kappas", "above .6",
            Side(low=0.6), partial(recovered, "certainty", "rank", f"mcinfonce, encoder of {n}"),
            SHORTER, FEW)
      for n in (8, 32)),
    *(Claim("figure 2", f"2 dimensions, rank of {name}s", said, value,
            partial(recovered, of, "rank", setting="published pairs, 2 dimensions"), SHORTER, FEW)
      for (of, name), said, value in zip(KINDS.items(), ("1.00", ".82 ± .05"),
                                         (Value(1.0, 0.01, chance=0),
                                          Value(0.82, 0.01, 0.05, chance=0)), strict=True)),
    *(Claim("figure 7", f"40 dimensions less 10, rank of {name}s", "below 0", Side(high=0),
            partial(dimensions_less, of), SHORTER, FEW)
      for of, name in KINDS.items()),
    Claim("table 11", "InfoNCE, rank of locations", ".99", Value(0.99, 0.01, chance=0),
          partial(recovered, "location", "rank", "infonce"), SHORTER, FEW),
    Claim("table 11", "InfoNCE, error of the location, RMSE", ".83", Value(0.83, 0.01),
          partial(recovered, "location", "rmse", "infonce"), SHORTER, FEW),
    Claim("table 11", "the error of InfoNCE less that of MCInfoNCE", "+.79", Side(low=0),
          location_less, SHORTER, FEW),
    Claim("table 11", "MCInfoNCE retrieves no worse than InfoNCE, recall@1", "+.005",
          Side(low=-0.005), recall_less, OTHER, f"{FROZEN}; worse: by .005"),
    *(Claim("table 4", f"{name}, {what}", said, Side(low=0), read, OTHER, FROZEN)
      for name, what, said, read in (
          ("MCInfoNCE", "people's entropy", ".29", partial(human, "mcinfonce", ENTROPY)),
          ("MCInfoNCE", "crops", ".68", partial(human, "mcinfonce", CROPS)),
          ("ELK", "people's entropy", ".14", partial(human, "elk", ENTROPY)),
          ("ELK", "crops", ".51", partial(human, "elk", CROPS)),
          ("HIB of eq. 54", "people's entropy", ".28", partial(hib, ENTROPY)),
          ("HIB of eq. 54", "crops", ".69", partial(hib, CROPS)))),
    *(Claim("table 4", f"MCInfoNCE, kappa by the norm, model chosen by crops: {what}", said,
            Side(low=0), partial(chosen, "soft", metric), OTHER, f"{FROZEN}, 64 pixels")
      for what, said, metric in (("people's entropy", ".29", ENTROPY), ("crops", ".68", CROPS))),
    *(Claim("table 5", f"the same, majority labels: {what}", said, Side(low=0),
            partial(chosen, "majority", metric), OTHER, f"{FROZEN}, 64 pixels")
      for what, said, metric in (("people's entropy", ".24", ENTROPY), ("crops", ".64", CROPS))),
)  # fmt: skip

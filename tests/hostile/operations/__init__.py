"""The public API as a table: what is called, with which good arguments, of which kind each is.

A call is decided by a seed and its number: the order of the rows is part of that.
"""

from tests.hostile.operations import (
    data_and_models,
    densities,
    embedders,
    evaluations,
    methods,
    monitors,
    searches,
    training,
)
from tests.hostile.operations.commands import COMMANDS, command
from tests.hostile.operations.kinds import KINDS
from tests.hostile.operations.table import Operation

__all__ = ["COMMANDS", "KINDS", "OPERATIONS", "Operation", "command"]

OPERATIONS: list[Operation] = [
    *embedders.OPERATIONS,
    *searches.OPERATIONS,
    *monitors.OPERATIONS,
    *training.OPERATIONS,
    *evaluations.OPERATIONS,
    *densities.OPERATIONS,
    *methods.OPERATIONS,
    *data_and_models.OPERATIONS,
]

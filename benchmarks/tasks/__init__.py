"""What is trained on, what is asked, and what is strange, task by task."""

from benchmarks.tasks.table import TASKS, build
from benchmarks.tasks.task import Part, Task
from benchmarks.tasks.workspace import Workspace

__all__ = ["TASKS", "Part", "Task", "Workspace", "build"]

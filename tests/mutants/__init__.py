"""Mutants: small errors drawn from the syntax tree, each of which some test should notice.

``python -m tests.mutants ROOM --draw 30 --seed 7``: ROOM is a folder or a file of the package.

operators  places of a file that can be wrong, and how
drawing    mutants of a room, the same ones for one seed
nearness   tests that can notice, the nearest first by imports
recording  which lines each test runs, kept in ``.cache/mutants``
worker     a process that has imported the libraries and forks for each run
judging    runs the tests that reach a mutant, in a copy of the tree
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

"""Generated bad calls of the whole public API: each must end right, or in an error with a name.

``python -m tests.hostile --calls 10000 --seed 0`` writes the table; ``test_hostile.py`` makes a
thousand calls. Every call is decided by the seed and its number alone, so one that failed is made
again by ``--only NUMBER``.
"""

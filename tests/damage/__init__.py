"""Killed writers, damaged files, full disks, two writers at once, planted links: what is lost.

``python -m tests.damage --kills 100 --damages 2000 --output TABLE`` writes the tables as
markdown and JSON; ``test_damage.py`` makes a small share of it. POSIX only: processes are forked.
"""

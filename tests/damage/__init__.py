"""Killed writers, damaged files, full disks, two writers at once: what is lost, and what is said.

``python -m tests.damage --kills 100 --damages 2000 --output TABLE`` writes the four tables as
markdown and JSON; ``test_damage.py`` makes a small share of it. POSIX only: processes are forked.
"""

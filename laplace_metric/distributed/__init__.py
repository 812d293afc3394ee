"""Fits of several processes, and fits that outlive their process.

``LaplaceEmbedder.fit`` runs the phases of ``laplace._fit`` with these values: the ranks of a
process group in the place of one process, and a checkpoint in the place of memory.
"""

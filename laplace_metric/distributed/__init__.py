"""Fits that outlive their process, or have several: checkpoints, process groups, passes."""

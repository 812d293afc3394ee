"""Claims of the papers: what is printed, ours, and a verdict by a stated criterion."""

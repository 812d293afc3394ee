"""How time and memory grow: points, processes, pairs in a margin, galleries, devices."""

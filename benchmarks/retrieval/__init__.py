"""Is it a match? What an index promises about its answers, and what it keeps."""

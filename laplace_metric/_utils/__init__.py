"""What every room may use: files, numbers, draws. Imports nothing of the package but ``errors``."""

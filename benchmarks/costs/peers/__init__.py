"""Other packages on our problems, each in an environment of its own."""

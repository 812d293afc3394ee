"""The variants of Laplace on the network of the LAM paper: post hoc and trained online."""

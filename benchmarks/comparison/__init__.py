"""Every method of ``baselines`` and Laplace, side by side on FashionMNIST."""

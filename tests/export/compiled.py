"""Compiled modules beside their embedders: a process of its own, without the checks of arrays.

Those wrap annotated functions in what ``torch.compile`` cannot read.
"""

from __future__ import annotations

import torch

from tests.export.problems import fitted, inputs

NAMES = ("linear", "chain", "normalised", "append")


def main() -> None:
    """Raise unless every head compiles to one graph, for several sizes of a batch."""
    x = inputs(33, seed=2)[0]
    for name in NAMES:
        torch._dynamo.reset()
        embedder = fitted(name)
        run = torch.compile(embedder.as_module(), backend="aot_eager", fullgraph=True)
        for n in (33, 5):
            expected = embedder(x[:n])
            three = (expected.mean, expected.epistemic, expected.uncertainty)
            for a, b in zip(run(x[:n]), three, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
        print(name)


if __name__ == "__main__":
    main()

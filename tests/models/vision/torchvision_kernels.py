"""Import torchvision where its compiled kernels do not load, as beside a torch of another build.

Its import looks up two operators of those kernels, which nothing here calls. They are declared, so
that the import passes; calling one is still an error.
"""

from __future__ import annotations

import torch

SCHEMAS = tuple(
    f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor" for name in ("nms", "qnms")
)
DECLARED = torch.library.Library("torchvision", "FRAGMENT")
"""Lives as long as the process: with it go the declarations."""

try:
    import torchvision
except RuntimeError as error:
    if "operator torchvision::" not in str(error):
        raise
    for schema in SCHEMAS:
        DECLARED.define(schema)
    import torchvision  # noqa: F401

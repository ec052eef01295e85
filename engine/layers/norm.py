"""Root-mean-square normalisation. Weights come ready to multiply (GGUF has already added any 1)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


class RMSNorm:
    """x / rms(x) * weight over the last axis, computed in x's type.

    `weight` [d] float32, or None for the weightless kind.
    """

    def __init__(self, weight: Tensor | None, size: int, eps: float) -> None:
        self.weight = weight
        self.shape = (size,)
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.shape, self.weight, self.eps)

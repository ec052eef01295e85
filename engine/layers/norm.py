"""Root-mean-square normalisation. Weights come ready to multiply (GGUF has already added any 1)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from engine.kernels.packed_gemv import Normed


class RMSNorm:
    """x / rms(x) * weight over the last axis, computed in x's type. `weight` float32 [d]."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)

    def fused(self) -> Normed:
        """The same as part of a product that follows."""
        return Normed(weight=self.weight, eps=self.eps)

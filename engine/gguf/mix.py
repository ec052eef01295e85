"""How the weights of a file are quantised: the name that people give it, and the share of each type."""

from __future__ import annotations

from collections import Counter

from engine.gguf.reader import GGUFFile

# `general.file_type`, as files say it of themselves.
_NAMES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4",
}


def type_bytes(file: GGUFFile) -> dict[str, int]:
    """Bytes of each tensor type, the largest first."""
    sums: Counter[str] = Counter()
    for tensor in file.tensors.values():
        sums[tensor.type.name] += tensor.n_bytes
    return dict(sums.most_common())


def quantization(file: GGUFFile) -> str:
    """ "Q4_K_M", as the file says of itself; else the type of most of its bytes. "" where it has no tensors."""
    known = _NAMES.get(file.metadata.integer("general.file_type", -1))
    return known or next(iter(type_bytes(file)), "")

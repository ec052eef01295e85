"""The names of tensors and metadata keys in GGUF files, for the families that Baton runs.

Names only: which of them a family has, and in which shapes, is for `models` to say. Weights end in ".weight" and
biases in ".bias"; both take a layer's number where they belong to a layer.
"""

from __future__ import annotations

# Outside the layers.
TOKEN_EMBEDDING = "token_embd.weight"
OUTPUT_NORM = "output_norm.weight"
# Absent where the output layer shares the token embedding.
OUTPUT = "output.weight"
# Llama 3's rotary scaling: divide each frequency by its factor. Absent elsewhere.
ROPE_FACTORS = "rope_freqs.weight"

# Parts of a layer, for `weight` and `bias`. All families:
ATTENTION_NORM = "attn_norm"
QUERY = "attn_q"
KEY = "attn_k"
VALUE = "attn_v"
ATTENTION_OUTPUT = "attn_output"
FFN_NORM = "ffn_norm"
FFN_GATE = "ffn_gate"
FFN_UP = "ffn_up"
FFN_DOWN = "ffn_down"
# qwen3 and gemma3: norms of each head's query and key.
QUERY_NORM = "attn_q_norm"
KEY_NORM = "attn_k_norm"
# gemma3: norms of what attention and feed-forward put out, before it is added. (Elsewhere the first of these
# names means the norm before the feed-forward.)
POST_ATTENTION_NORM = "post_attention_norm"
POST_FFN_NORM = "post_ffw_norm"


def weight(layer: int, part: str) -> str:
    """`weight(3, QUERY)` is "blk.3.attn_q.weight"."""
    return f"blk.{layer}.{part}.weight"


def bias(layer: int, part: str) -> str:
    """`bias(3, QUERY)` is "blk.3.attn_q.bias"."""
    return f"blk.{layer}.{part}.bias"


def layer_of(name: str) -> int | None:
    """The layer that a tensor belongs to, or None for one outside the layers."""
    prefix, _, rest = name.partition(".")
    number, _, part = rest.partition(".")
    if prefix != "blk" or not part or not (number.isascii() and number.isdigit()):
        return None
    return int(number)


def key(architecture: str, name: str) -> str:
    """`key("llama", "block_count")` is "llama.block_count": most metadata keys carry the family's name."""
    return f"{architecture}.{name}"

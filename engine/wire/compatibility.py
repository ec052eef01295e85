"""Whether two hellos fit together: every identity compared before any payload. Pure; knows no connection.

Each kind of mismatch has its own code, and a sentence that names both sides, so that a user can see which
computer to change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.errors import PeerIncompatible
from engine.wire.limits import PROTOCOL_MAJOR, PROTOCOL_MINOR
from engine.wire.messages import Code, LayerShape, ModelIdentity


class Incompatible(PeerIncompatible):
    """A mismatch found in the hellos; `code` says in which part."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, kw_only=True)
class ProtocolVersion:
    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


OWN_VERSION = ProtocolVersion(major=PROTOCOL_MAJOR, minor=PROTOCOL_MINOR)


def check_versions(*, client: ProtocolVersion, worker: ProtocolVersion) -> None:
    """Raise Incompatible unless the majors are equal and the worker's minor is not above the client's."""
    if client.major != worker.major:
        older = "decode" if client.major < worker.major else "prefill"
        raise Incompatible(
            Code.VERSION,
            f"the decode side speaks protocol {client} and the prefill side {worker}: "
            f"update Baton on the {older} side",
        )
    if worker.minor > client.minor:
        raise Incompatible(
            Code.VERSION,
            f"the decode side speaks protocol {client} and the prefill side {worker}: "
            "update Baton on the decode side",
        )


def check_identities(*, client: ModelIdentity, worker: ModelIdentity) -> None:
    """Raise Incompatible for the first part in which the two differ, the most telling first."""
    if client.model_digest != worker.model_digest:
        raise Incompatible(
            Code.MODEL,
            f"the decode side has the model {client.model_name} ({_short(client.model_digest)}) and the "
            f"prefill side {worker.model_name} ({_short(worker.model_digest)}): both need the same model file",
        )
    if client.tokenizer_digest != worker.tokenizer_digest:
        raise Incompatible(
            Code.TOKENIZER,
            f"the tokenizers differ: {_short(client.tokenizer_digest)} on the decode side, "
            f"{_short(worker.tokenizer_digest)} on the prefill side",
        )
    if _layer_map(client.layers) != _layer_map(worker.layers):
        raise Incompatible(
            Code.LAYER_MAP,
            f"the layers differ: {_first_difference(client.layers, worker.layers, _map_entry)}",
        )
    if _head_layout(client.layers) != _head_layout(worker.layers):
        raise Incompatible(
            Code.HEAD_LAYOUT,
            f"the heads differ: {_first_difference(client.layers, worker.layers, _head_entry)}",
        )
    if client.rope != worker.rope:
        raise Incompatible(
            Code.ROPE,
            f"the rope parameters differ: {_text(client.rope)} on the decode side, "
            f"{_text(worker.rope)} on the prefill side",
        )
    if client.kv_type != worker.kv_type:
        raise Incompatible(
            Code.KV_TYPE,
            f"the decode side keeps its cache as {client.kv_type} and the prefill side as {worker.kv_type}: "
            "start both with the same --weights",
        )
    if client.adapters != worker.adapters:
        raise Incompatible(
            Code.ADAPTERS,
            f"the adapters differ: {_adapters(client)} on the decode side, "
            f"{_adapters(worker)} on the prefill side",
        )


def common_codecs(*, client: tuple[str, ...], worker: tuple[str, ...]) -> tuple[str, ...]:
    """The codecs both know, in the client's order; raises Incompatible when there is none."""
    common = tuple(codec for codec in client if codec in worker)
    if not common:
        raise Incompatible(
            Code.CODECS,
            f"no codec in common: {', '.join(client) or 'none'} on the decode side, "
            f"{', '.join(worker) or 'none'} on the prefill side",
        )
    return common


def _map_entry(layer: LayerShape) -> tuple[object, ...]:
    return (layer.kind, layer.window, layer.state_bytes)


def _head_entry(layer: LayerShape) -> tuple[object, ...]:
    return (layer.n_kv_heads, layer.k_head_dim, layer.v_head_dim)


def _layer_map(layers: tuple[LayerShape, ...]) -> list[tuple[object, ...]]:
    return [_map_entry(layer) for layer in layers]


def _head_layout(layers: tuple[LayerShape, ...]) -> list[tuple[object, ...]]:
    return [_head_entry(layer) for layer in layers]


def _first_difference(
    client: tuple[LayerShape, ...],
    worker: tuple[LayerShape, ...],
    entry: Callable[[LayerShape], tuple[object, ...]],
) -> str:
    if len(client) != len(worker):
        return f"{len(client)} layers on the decode side, {len(worker)} on the prefill side"
    for index, (ours, theirs) in enumerate(zip(client, worker, strict=True)):
        if entry(ours) != entry(theirs):
            return f"layer {index} is {_layer(ours)} on the decode side, {_layer(theirs)} on the prefill side"
    return "nowhere"


def _layer(layer: LayerShape) -> str:
    heads = f"{layer.n_kv_heads} KV heads of {layer.k_head_dim} and {layer.v_head_dim}"
    if layer.window:
        return f"{layer.kind} over {layer.window} positions with {heads}"
    if layer.state_bytes:
        return f"{layer.kind} with a state of {layer.state_bytes} bytes"
    return f"{layer.kind} with {heads}"


def _text(rope: tuple[tuple[str, str], ...]) -> str:
    return " ".join(f"{name}={value}" for name, value in rope) or "none"


def _adapters(identity: ModelIdentity) -> str:
    return ", ".join(_short(adapter) for adapter in identity.adapters) or "none"


def _short(digest: str) -> str:
    return digest[:12] or "none"

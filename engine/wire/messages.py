"""The messages of Baton's wire protocol, one frozen struct each.

The decode side is the *client*, the prefill side is the *worker*, whoever dialled. Units stand in the names;
times are microseconds of the sender's own monotonic clock. Every field has its bounds, checked while
decoding; an unknown field or message is refused. Nothing here knows frames, sockets or what a message leads
to.
"""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec
from msgspec import Meta

from engine.cache.spec import CacheSpec, KVType, LayerKind
from engine.wire.limits import (
    MAX_ADAPTERS,
    MAX_CERTIFICATE_BYTES,
    MAX_CHUNK_TOKENS,
    MAX_CHUNKS,
    MAX_CODECS,
    MAX_DATA_STREAMS,
    MAX_DIGEST_CHARS,
    MAX_LAYERS,
    MAX_NAME_CHARS,
    MAX_PROMPT_TOKENS,
    MAX_ROPE_PARAMETERS,
    MAX_ROW_BYTES,
    MAX_STATE_BYTES,
    MAX_TEXT_CHARS,
    MIN_CHUNK_TOKENS,
    SESSION_BYTES,
)

_INT63 = (1 << 63) - 1

RequestId = Annotated[int, Meta(ge=1, le=_INT63)]
FenceId = Annotated[int, Meta(ge=1, le=_INT63)]
Version = Annotated[int, Meta(ge=0, le=65535)]
Position = Annotated[int, Meta(ge=0, le=MAX_PROMPT_TOKENS)]
ChunkIndex = Annotated[int, Meta(ge=0, lt=MAX_CHUNKS)]
ChunkTokens = Annotated[int, Meta(ge=MIN_CHUNK_TOKENS, le=MAX_CHUNK_TOKENS)]
Count = Annotated[int, Meta(ge=0, le=_INT63)]
Bytes = Annotated[int, Meta(ge=0, le=_INT63)]
Microseconds = Annotated[int, Meta(ge=0, le=_INT63)]
RowBytes = Annotated[int, Meta(ge=0, le=MAX_ROW_BYTES)]
StateBytes = Annotated[int, Meta(ge=0, le=MAX_STATE_BYTES)]
Streams = Annotated[int, Meta(ge=1, le=MAX_DATA_STREAMS)]
StreamIndex = Annotated[int, Meta(ge=0, lt=MAX_DATA_STREAMS)]
Session = Annotated[bytes, Meta(min_length=SESSION_BYTES, max_length=SESSION_BYTES)]
Name = Annotated[str, Meta(max_length=MAX_NAME_CHARS)]
Digest = Annotated[str, Meta(max_length=MAX_DIGEST_CHARS)]
Text = Annotated[str, Meta(max_length=MAX_TEXT_CHARS)]
TokenBytes = Annotated[bytes, Meta(max_length=4 * MAX_PROMPT_TOKENS)]
CertificateBytes = Annotated[bytes, Meta(min_length=1, max_length=MAX_CERTIFICATE_BYTES)]


class Role(enum.StrEnum):
    """Which end of a handoff a node is; never follows from who dialled."""

    DECODE = "decode"
    PREFILL = "prefill"


class Code(enum.StrEnum):
    """Why something was refused or ended; the sentence for the user travels beside it."""

    # of a hello
    VERSION = "version"
    ROLE = "role"
    MODEL = "model"
    TOKENIZER = "tokenizer"
    LAYER_MAP = "layer_map"
    HEAD_LAYOUT = "head_layout"
    ROPE = "rope"
    KV_TYPE = "kv_type"
    ADAPTERS = "adapters"
    CODECS = "codecs"
    # of a request
    BUSY = "busy"
    TOO_LONG = "too_long"
    BAD_TOKENS = "bad_tokens"
    CODEC = "codec"
    OUT_OF_MEMORY = "out_of_memory"
    WORKER_FAILED = "worker_failed"
    # of a connection
    PROTOCOL = "protocol"
    GOING = "going"
    FULL = "full"


class LayerShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One layer of the layer map: its kind, and the head layout of what it caches.

    K and V are rows of `n_kv_heads` heads of `k_head_dim` and `v_head_dim` values, position after position.
    """

    kind: LayerKind
    n_kv_heads: RowBytes = 0
    k_head_dim: RowBytes = 0
    v_head_dim: RowBytes = 0
    window: Position = 0
    state_bytes: StateBytes = 0


class ModelIdentity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What both ends must hold alike before one byte of cache may cross. `model_name` is only shown.

    `rope` names each parameter of the position encoding with its value as text, sorted by name.
    """

    model_name: Name
    model_digest: Digest
    tokenizer_digest: Digest
    layers: Annotated[tuple[LayerShape, ...], Meta(max_length=MAX_LAYERS)]
    rope: Annotated[tuple[tuple[Name, Name], ...], Meta(max_length=MAX_ROPE_PARAMETERS)]
    kv_type: KVType
    adapters: Annotated[tuple[Digest, ...], Meta(max_length=MAX_ADAPTERS)] = ()


class Message(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="type",
    omit_defaults=True,
):
    """Base of all messages; the tag in the field `type` tells them apart."""


class Introduce(Message, frozen=True, tag="introduce"):
    """Dialler, on a connection for introductions only: this is my certificate (DER)."""

    certificate: CertificateBytes


class Introduced(Message, frozen=True, tag="introduced"):
    """Listener: that certificate's fingerprint is the trusted one; come back with it."""


class Hello(Message, frozen=True, tag="hello"):
    """Client, first message of a control connection. `session` names the link for its data streams."""

    protocol_major: Version
    protocol_minor: Version
    role: Role
    session: Session
    identity: ModelIdentity
    codecs: Annotated[tuple[Name, ...], Meta(max_length=MAX_CODECS)]
    data_streams: Streams = 1


class HelloReply(Message, frozen=True, tag="hello_reply"):
    """Worker: the hello fits. `codecs` are those both ends know, `data_streams` how many will be used."""

    protocol_major: Version
    protocol_minor: Version
    role: Role
    identity: ModelIdentity
    codecs: Annotated[tuple[Name, ...], Meta(max_length=MAX_CODECS)]
    data_streams: Streams
    max_prompt_tokens: Position


class HelloRefused(Message, frozen=True, tag="hello_refused"):
    """Worker: the hello does not fit, for the reason given; the connection ends."""

    code: Code
    message: Text


class Attach(Message, frozen=True, tag="attach"):
    """Dialler, first message of a data connection: this is stream `stream` of that session."""

    session: Session
    stream: StreamIndex


class Prefill(Message, frozen=True, tag="prefill"):
    """Client: compute these tokens and send positions [first, stop) of every layer.

    `tokens` holds all positions from 0 to `stop` as little-endian unsigned 32-bit ids. The client has [0,
    first). Without `reuse` the worker is to compute all of it, whatever its cache holds. With `checkpoints` the
    client has room for windows and states that come on the way.
    """

    request: RequestId
    tokens: TokenBytes
    first: Position
    stop: Position
    chunk_tokens: ChunkTokens
    codec: Name
    reuse: bool = True
    checkpoints: bool = False


class Warm(Message, frozen=True, tag="warm"):
    """Client: the next prompt will begin with these tokens. Compute them when there is nothing else to do.

    There is no answer.
    """

    tokens: TokenBytes


class Accepted(Message, frozen=True, tag="accepted"):
    """Worker: the request begins now; `reused_tokens` positions were in the worker's own cache already."""

    request: RequestId
    reused_tokens: Position


class Busy(Message, frozen=True, tag="busy"):
    """Worker: no room for this request now; it is forgotten."""

    request: RequestId
    message: Text


class Refused(Message, frozen=True, tag="refused"):
    """Worker: this request cannot be served; it is forgotten."""

    request: RequestId
    code: Code
    message: Text


class Progress(Message, frozen=True, tag="progress"):
    """Worker: `computed_tokens` positions are computed, sent or not."""

    request: RequestId
    computed_tokens: Position


class Commit(Message, frozen=True, tag="commit"):
    """Worker: everything of this chunk has been queued: positions, number of layer frames, payload bytes.

    A `checkpoint` holds windows and states although it is not the last chunk.
    It was computed from `started_us` to `ended_us`, and its frames were queued at `queued_us`, in their order. Times
    are of the worker's clock.
    """

    request: RequestId
    chunk: ChunkIndex
    first: Position
    stop: Position
    layers: Count
    payload_bytes: Bytes
    started_us: Microseconds
    ended_us: Microseconds
    queued_us: Annotated[tuple[Microseconds, ...], Meta(max_length=MAX_LAYERS)]
    checkpoint: bool = False


class CommitAck(Message, frozen=True, tag="commit_ack"):
    """Client: every layer of the chunk has arrived and been checked; the chunk is in its cache."""

    request: RequestId
    chunk: ChunkIndex


class ComputeDone(Message, frozen=True, tag="compute_done"):
    """Worker: the last compute has ended. Times are of the worker's clock."""

    request: RequestId
    started_us: Microseconds
    ended_us: Microseconds


class Finished(Message, frozen=True, tag="finished"):
    """Worker: the final commit was acknowledged; the request is forgotten.

    `tail_us` runs on the worker's clock from the end of its last compute to that acknowledgement.
    """

    request: RequestId
    payload_bytes: Bytes
    tail_us: Microseconds


class Cancel(Message, frozen=True, tag="cancel"):
    """Client: stop this request. A fence follows it, and until its answer the request's data may still come."""

    request: RequestId


class Aborted(Message, frozen=True, tag="aborted"):
    """Worker: an accepted request ends here. Data sent before may still be on its way: fence it."""

    request: RequestId
    code: Code
    message: Text


class Fence(Message, frozen=True, tag="fence"):
    """Client: answer on the control connection and on every data stream, behind all that is queued there."""

    fence: FenceId


class FenceReply(Message, frozen=True, tag="fence_reply"):
    """Worker, on the control connection and on every data stream: all queued there before the fence was sent."""

    fence: FenceId


class Ping(Message, frozen=True, tag="ping"):
    """Either end, on the control connection, once a heartbeat."""

    sent_us: Microseconds


class Pong(Message, frozen=True, tag="pong"):
    """The answer to a ping: its time, and the answerer's own clock when it came."""

    ping_sent_us: Microseconds
    received_us: Microseconds


class Error(Message, frozen=True, tag="error"):
    """Either end: the connection ends, for this reason."""

    code: Code
    message: Text


ControlMessage = (
    Hello
    | HelloReply
    | HelloRefused
    | Prefill
    | Warm
    | Accepted
    | Busy
    | Refused
    | Progress
    | Commit
    | CommitAck
    | ComputeDone
    | Finished
    | Cancel
    | Aborted
    | Fence
    | FenceReply
    | Ping
    | Pong
    | Error
)
StreamMessage = Attach | FenceReply
IntroductionMessage = Introduce | Introduced
AnyMessage = ControlMessage | Attach | IntroductionMessage


def layer_shapes(spec: CacheSpec) -> tuple[LayerShape, ...]:
    """The layer map of a cache, as a hello carries it."""
    return tuple(
        LayerShape(
            kind=layer.kind,
            n_kv_heads=layer.n_kv_heads,
            k_head_dim=layer.k_head_dim,
            v_head_dim=layer.v_head_dim,
            window=layer.window,
            state_bytes=layer.state_bytes,
        )
        for layer in spec.layers
    )

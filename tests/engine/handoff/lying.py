"""A worker of the trusted identity that speaks the protocol by hand, until it is told to break it."""

from __future__ import annotations

import ssl
from collections.abc import Callable

from engine.handoff.transport import (
    CONTROL_PROTOCOL,
    DATA_PROTOCOL,
    Address,
    connect,
    handshake,
    read_exactly,
)
from engine.node.trust.identity import MUTUAL_NAME, Identity, mutual_context
from engine.wire.codec import (
    CONTROL_MESSAGES,
    FRAME_HEADER,
    DataHeader,
    PayloadCodec,
    decode_frame_header,
    decode_message,
    encode_data_header,
    encode_message,
)
from engine.wire.geometry import HandoffPlan
from engine.wire.limits import PROTOCOL_MAJOR, PROTOCOL_MINOR
from engine.wire.messages import Accepted, Attach, Commit, CommitAck, Hello, HelloReply, Message, Role
from engine.wire.messages import Finished as WireFinished
from engine.wire.worker import PrefillAsked, WorkerConnection


def dial(port: int, who: Identity, peer: Identity, protocol: str) -> ssl.SSLSocket:
    context = mutual_context(who, server_side=False, peer_der=peer.certificate_der, protocols=(protocol,))
    return handshake(connect(Address(host="127.0.0.1", port=port)), context, server_name=MUTUAL_NAME)


def read_frame(connection: ssl.SSLSocket) -> bytes:
    head = read_exactly(connection, FRAME_HEADER.size)
    _, n_bytes = decode_frame_header(head, max_body_bytes=1 << 24)
    return head + read_exactly(connection, n_bytes)


def read_message(connection: ssl.SSLSocket) -> object:
    return decode_message(read_frame(connection)[FRAME_HEADER.size :], CONTROL_MESSAGES)


def reply_to(hello: Hello, **changes: object) -> HelloReply:
    """That of a worker with the same model."""
    fields: dict[str, object] = {
        "protocol_major": PROTOCOL_MAJOR,
        "protocol_minor": PROTOCOL_MINOR,
        "role": Role.PREFILL,
        "identity": hello.identity,
        "codecs": ("raw",),
        "data_streams": 1,
        "max_prompt_tokens": 1 << 16,
    }
    return HelloReply(**(fields | changes))  # type: ignore[arg-type]


class LyingWorker:
    """`meet(protocol)` gives a connection of that kind to the decode side; who `dials` says which data stream it is."""

    def __init__(
        self, meet: Callable[[str], ssl.SSLSocket], *, dials: bool, codecs: tuple[str, ...] = ("raw",)
    ) -> None:
        self.control = meet(CONTROL_PROTOCOL)
        frame = read_frame(self.control)
        hello = decode_message(frame[FRAME_HEADER.size :], CONTROL_MESSAGES)
        assert isinstance(hello, Hello)
        self._connection = WorkerConnection(reply=reply_to(hello, codecs=codecs), clock=lambda: 0)
        self._take(frame)
        self.data = meet(DATA_PROTOCOL)
        if dials:
            self.data.sendall(encode_message(Attach(session=hello.session, stream=0)))
        else:
            read_frame(self.data)
        self._identity = hello.identity

    def accept(self) -> None:
        """Wait for a request and take it."""
        asked = None
        while asked is None:
            asked = next(
                (e for e in self._take(read_frame(self.control)) if isinstance(e, PrefillAsked)), None
            )
        self.request = asked.request
        self.plan = HandoffPlan.cut(
            layers=self._identity.layers,
            kv_type=self._identity.kv_type,
            first=asked.first,
            stop=asked.stop,
            chunk_tokens=asked.chunk_tokens,
        )
        self.say(Accepted(request=self.request, reused_tokens=0))

    def say(self, message: Message) -> None:
        self.control.sendall(encode_message(message))

    def send(self, chunk: int, layer: int, /, **changes: int) -> None:
        """A layer of a chunk as planned, all of it zeros, but for the `changes` of its header."""
        part = self.plan.part(chunk, layer)
        assert part is not None
        fields = {
            "request": self.request,
            "chunk": chunk,
            "layer": layer,
            "first_row": part.first_row,
            "rows": part.rows,
            "payload_bytes": part.payload_bytes,
        }
        header = DataHeader(codec=PayloadCodec.RAW, **(fields | changes))
        self.data.sendall(encode_data_header(header) + bytes(header.payload_bytes))

    def commit(self, chunk: int, /, **changes: int) -> None:
        parts = self.plan.parts(chunk)
        first, stop = self.plan.chunks[chunk]
        fields: dict[str, object] = {
            "request": self.request,
            "chunk": chunk,
            "first": first,
            "stop": stop,
            "layers": len(parts),
            "payload_bytes": sum(part.payload_bytes for part in parts),
            "started_us": 0,
            "ended_us": 0,
            "queued_us": (0,) * len(parts),
        }
        self.say(Commit(**(fields | changes)))

    def finish(self, payload_bytes: int = 0) -> None:
        self.say(WireFinished(request=self.request, payload_bytes=payload_bytes, tail_us=0))

    def close(self) -> None:
        self.control.close()
        self.data.close()

    def _take(self, frame: bytes) -> list[object]:
        """Answer what came as the protocol has it."""
        events = self._connection.receive(frame)
        if output := self._connection.take_output():
            self.control.sendall(output)
        return list(events)


def _two_layers_that_change_places(liar: LyingWorker) -> None:
    last = len(liar.plan.layers) - 1
    liar.send(0, last)
    liar.send(0, 0)


def _again(liar: LyingWorker, *, committed: bool) -> None:
    layers = range(len(liar.plan.layers)) if committed else [0]
    for layer in layers:
        if liar.plan.part(0, layer) is not None:
            liar.send(0, layer)
    if committed:
        liar.commit(0)
        while not isinstance(read_message(liar.control), CommitAck):
            pass
    liar.send(0, 0)


LIES: dict[str, Callable[[LyingWorker], None]] = {
    "other rows": lambda liar: liar.send(0, 0, first_row=1),
    "another size": lambda liar: liar.send(0, 0, payload_bytes=2),
    "a layer twice": lambda liar: _again(liar, committed=False),
    "a chunk that does not exist": lambda liar: liar.send(0, 0, chunk=60_000),
    "layers out of order": _two_layers_that_change_places,
    "another request": lambda liar: liar.send(0, 0, request=liar.request + 1),
    "a commit of another chunk": lambda liar: liar.commit(1),
    "a commit of fewer bytes": lambda liar: liar.commit(0, payload_bytes=1),
    "done too early": lambda liar: liar.finish(),
    "garbage": lambda liar: liar.data.sendall(b"\xff" * 100),
    "garbage on the control connection": lambda liar: liar.control.sendall(b"\xff" * 100),
}

# What is found out only after a chunk has been taken as good.
LATE_LIES: dict[str, Callable[[LyingWorker], None]] = {
    "a chunk twice": lambda liar: _again(liar, committed=True),
}

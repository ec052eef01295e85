"""What both ends are told of a hello that does not fit: its code, the values of both sides. No payload crosses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from engine.cache.spec import KVType
from engine.errors import PeerUnreachable
from engine.handoff.client_events import LinkChanged
from engine.handoff.transport import CONTROL_PROTOCOL
from engine.wire.codec import encode_message
from engine.wire.limits import PROTOCOL_MAJOR, PROTOCOL_MINOR, SESSION_BYTES
from engine.wire.messages import Code, Hello, HelloRefused, ModelIdentity, Role
from tests.engine.handoff.lying import dial, read_message, reply_to
from tests.engine.handoff.pairs import TIMEOUT_S, ClientSide, WorkerSide, courier_config, identity, pair

LAYERS = identity().layers
MODEL = identity(rope=(("base", "10000.0"),))


def changed(**changes: object) -> dict[str, object]:
    return {"identity": msgspec.structs.replace(MODEL, **changes)}


# What the other end says of itself instead, and what has to stand in the sentence: the value here, and there.
MISMATCHES: list[tuple[Code, dict[str, object], tuple[str, str]]] = [
    (Code.VERSION, {"protocol_major": PROTOCOL_MAJOR + 1}, (f"{PROTOCOL_MAJOR}.", f"{PROTOCOL_MAJOR + 1}.")),
    (
        Code.MODEL,
        changed(model_name="another", model_digest="22" * 32),
        ("fake (000000000000)", "another (2222"),
    ),
    (Code.TOKENIZER, changed(tokenizer_digest="33" * 32), ("111111111111", "333333333333")),
    (Code.LAYER_MAP, changed(layers=LAYERS[:-1]), ("4", "3")),
    (
        Code.HEAD_LAYOUT,
        changed(layers=(msgspec.structs.replace(LAYERS[0], n_kv_heads=5), *LAYERS[1:])),
        ("2 KV heads", "5 KV heads"),
    ),
    (Code.ROPE, changed(rope=(("base", "500000.0"),)), ("base=10000.0", "base=500000.0")),
    (Code.KV_TYPE, changed(kv_type=KVType.F16), ("bf16", " f16")),
    (Code.ADAPTERS, changed(adapters=("44" * 32,)), ("none", "444444444444")),
    (Code.CODECS, {"codecs": ("zip",)}, ("raw", "zip")),
]
IDS = [code.value for code, _, _ in MISMATCHES]


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ClientSide, WorkerSide]]:
    """A client that waits to be called by its worker, and a worker that waits to be called by its client."""
    with pair(tmp_path_factory.mktemp("hello"), start=False) as (client, worker):
        # They know each other's certificates from a link that was.
        config = courier_config(Role.PREFILL, worker.folder, client.identity.fingerprint, identity=MODEL)
        port = worker.start(msgspec.structs.replace(config, listen="127.0.0.1:0"))
        config = courier_config(Role.DECODE, client.folder, worker.identity.fingerprint, identity=MODEL)
        client.start(msgspec.structs.replace(config, dial=f"127.0.0.1:{port}"))
        client.wait_ready()
        client.stop()
        client.start(msgspec.structs.replace(config, listen="127.0.0.1:0"))
        yield client, worker


@pytest.mark.parametrize("code, changes, values", MISMATCHES, ids=IDS)
def test_a_worker_that_does_not_fit_is_refused_here(
    sides: tuple[ClientSide, WorkerSide], code: Code, changes: dict[str, Any], values: tuple[str, str]
) -> None:
    client, worker = sides
    client.events.clear()
    with dial(client.port or 0, worker.identity, client.identity, CONTROL_PROTOCOL) as control:
        hello = read_message(control)
        assert isinstance(hello, Hello)
        control.sendall(encode_message(reply_to(hello, **changes)))

        def refused() -> bool:
            return any(isinstance(event, LinkChanged) and event.code == code for event in client.events)

        client.wait_until(refused)
    note = client.opened.status().note
    here, there = values
    assert f"{here}" in note and f"{there}" in note, note
    # As `baton status` shows it, and as whoever asks hears it.
    with pytest.raises(PeerUnreachable) as unasked:
        client.ask(1, 50)
    assert str(unasked.value) == note


@pytest.mark.parametrize("code, changes, values", MISMATCHES, ids=IDS)
def test_a_client_that_does_not_fit_is_refused_there(
    sides: tuple[ClientSide, WorkerSide], code: Code, changes: dict[str, Any], values: tuple[str, str]
) -> None:
    client, worker = sides
    while not worker.notes.empty():
        worker.notes.get()
    with dial(worker.port or 0, client.identity, worker.identity, CONTROL_PROTOCOL) as control:
        fields: dict[str, Any] = {"protocol_major": PROTOCOL_MAJOR, "protocol_minor": PROTOCOL_MINOR}
        fields |= {
            "role": Role.DECODE,
            "session": bytes(SESSION_BYTES),
            "identity": MODEL,
            "codecs": ("raw",),
        }
        control.sendall(encode_message(Hello(**(fields | changes))))
        refusal = read_message(control)
    assert isinstance(refusal, HelloRefused) and refusal.code is code
    assert all(value in refusal.message for value in values), refusal.message
    assert worker.notes.get(timeout=TIMEOUT_S) == refusal.message
    assert not worker.prefiller.begun


def test_every_identity_has_its_refusal() -> None:
    """A field that joins the identity without joining what is compared would let other caches in."""
    of_model = set(ModelIdentity.__struct_fields__) - {"model_name"}
    named = {"model_digest", "tokenizer_digest", "layers", "rope", "kv_type", "adapters"}
    assert of_model == named
    assert len({code for code, _, _ in MISMATCHES}) == len(MISMATCHES)

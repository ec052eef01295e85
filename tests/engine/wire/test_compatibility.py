"""The hello: every identity compared, each mismatch with its own code, and both sides named."""

from __future__ import annotations

import msgspec
import pytest

from engine.cache.spec import KVType, LayerKind
from engine.errors import ProtocolError
from engine.wire.client import ClientConnection, Opened
from engine.wire.codec import encode_message
from engine.wire.compatibility import (
    Incompatible,
    ProtocolVersion,
    check_identities,
    check_versions,
    common_codecs,
)
from engine.wire.connection import ConnectionState
from engine.wire.messages import Code, HelloRefused, LayerShape, ModelIdentity, Role
from engine.wire.worker import ClientOpened, WorkerConnection
from tests.engine.wire.ends import Glued, ManualClock, hello, hello_reply, identity

LAYERS = identity().layers


def changed_layer(index: int, **changes: object) -> tuple[LayerShape, ...]:
    layers = list(LAYERS)
    layers[index] = msgspec.structs.replace(layers[index], **changes)
    return tuple(layers)


MISMATCHES = [
    (
        Code.MODEL,
        identity(model_name="other", model_digest="cc" * 32),
        ("tiny", "aaaaaaaaaaaa", "other", "cccccccccccc"),
    ),
    (Code.TOKENIZER, identity(tokenizer_digest="dd" * 32), ("bbbbbbbbbbbb", "dddddddddddd")),
    (Code.LAYER_MAP, identity(layers=LAYERS[:-1]), ("4 layers", "3 on the prefill side")),
    (Code.LAYER_MAP, identity(layers=changed_layer(1, window=10)), ("layer 1", "over 9 pos", "over 10 pos")),
    (Code.LAYER_MAP, identity(layers=changed_layer(2, state_bytes=38)), ("layer 2", "37 bytes", "38 bytes")),
    (
        Code.LAYER_MAP,
        identity(layers=changed_layer(3, kind=LayerKind.WINDOW)),
        ("layer 3", "attention", "window"),
    ),
    (
        Code.HEAD_LAYOUT,
        identity(layers=changed_layer(0, n_kv_heads=4)),
        ("layer 0", "2 KV heads", "4 KV heads"),
    ),
    (Code.HEAD_LAYOUT, identity(layers=changed_layer(3, v_head_dim=3)), ("layer 3", "8 and 2", "8 and 3")),
    (Code.ROPE, identity(rope=(("base", "500000.0"), ("kind", "neox"))), ("base=10000.0", "base=500000.0")),
    (Code.KV_TYPE, identity(kv_type=KVType.F32), ("bf16", "f32")),
    (Code.ADAPTERS, identity(adapters=("ee" * 32,)), ("none on the decode side", "eeeeeeeeeeee")),
]


@pytest.mark.parametrize("code, worker, names", MISMATCHES)
def test_each_mismatch_has_its_code_and_names_both_sides(
    code: Code, worker: ModelIdentity, names: tuple[str, ...]
) -> None:
    with pytest.raises(Incompatible) as caught:
        check_identities(client=identity(), worker=worker)
    assert caught.value.code is code
    for name in names:
        assert name in str(caught.value)


def test_the_shown_name_of_a_model_is_not_compared() -> None:
    check_identities(client=identity(), worker=identity(model_name="same file, renamed"))


@pytest.mark.parametrize("client, worker", [((1, 0), (1, 0)), ((1, 3), (1, 0)), ((1, 3), (1, 3))])
def test_versions_that_fit(client: tuple[int, int], worker: tuple[int, int]) -> None:
    check_versions(client=version(client), worker=version(worker))


@pytest.mark.parametrize(
    "client, worker, older",
    [((1, 0), (2, 0), "decode"), ((2, 0), (1, 9), "prefill"), ((1, 0), (1, 1), "decode")],
)
def test_versions_that_do_not_fit_name_both(
    client: tuple[int, int], worker: tuple[int, int], older: str
) -> None:
    with pytest.raises(
        Incompatible, match=rf"{client[0]}\.{client[1]} .* {worker[0]}\.{worker[1]}: .*{older} side"
    ):
        check_versions(client=version(client), worker=version(worker))


def version(pair: tuple[int, int]) -> ProtocolVersion:
    return ProtocolVersion(major=pair[0], minor=pair[1])


def test_codecs_are_agreed_in_the_clients_order() -> None:
    assert common_codecs(client=("int8", "raw", "new"), worker=("raw", "int8")) == ("int8", "raw")
    with pytest.raises(Incompatible, match=r"int8 .* raw"):
        common_codecs(client=("int8",), worker=("raw",))


def test_a_fitting_hello_opens_both_ends() -> None:
    ends = Glued(data_streams=3).open()
    assert isinstance(ends.worker_events[0], ClientOpened)
    assert isinstance(ends.client_events[0], Opened)
    assert ends.client.reply is not None and ends.client.reply.data_streams == 3
    assert ends.client.state is ends.worker.state is ConnectionState.OPEN


@pytest.mark.parametrize("code, worker_identity, names", MISMATCHES)
def test_the_worker_refuses_and_the_client_learns_the_same_reason(
    code: Code, worker_identity: ModelIdentity, names: tuple[str, ...]
) -> None:
    client = ClientConnection(hello=hello(), clock=ManualClock())
    worker = WorkerConnection(reply=hello_reply(identity=worker_identity), clock=ManualClock())
    with pytest.raises(Incompatible) as at_worker:
        worker.receive(client.take_output())
    with pytest.raises(Incompatible) as at_client:
        client.receive(worker.last_words(at_worker.value))
    assert at_worker.value.code is at_client.value.code is code
    assert str(at_worker.value) == str(at_client.value)
    assert client.state is worker.state is ConnectionState.CLOSED


def test_the_client_does_not_trust_the_worker_to_have_compared() -> None:
    client = ClientConnection(hello=hello(), clock=ManualClock())
    with pytest.raises(Incompatible) as caught:
        client.receive(encode_message(hello_reply(identity=identity(model_digest="ff" * 32))))
    assert caught.value.code is Code.MODEL


@pytest.mark.parametrize("major, minor", [(2, 0), (0, 9)])
def test_a_hello_of_another_major_is_refused_by_version_even_with_unknown_fields(
    major: int, minor: int
) -> None:
    fields = {"type": "hello", "protocol_major": major, "protocol_minor": minor, "new_field": [1, {"a": 2}]}
    worker = WorkerConnection(reply=hello_reply(), clock=ManualClock())
    with pytest.raises(Incompatible) as caught:
        worker.receive(control_frame(fields))
    assert caught.value.code is Code.VERSION
    assert f"{major}.{minor}" in str(caught.value) and "1.0" in str(caught.value)
    client = ClientConnection(hello=hello(), clock=ManualClock())
    with pytest.raises(Incompatible):
        client.receive(worker.last_words(caught.value))
    client = ClientConnection(hello=hello(), clock=ManualClock())
    with pytest.raises(Incompatible) as caught:
        client.receive(control_frame(fields | {"type": "hello_reply"}))
    assert caught.value.code is Code.VERSION


def test_a_newer_worker_is_refused_by_an_older_client() -> None:
    client = ClientConnection(hello=hello(), clock=ManualClock())
    with pytest.raises(Incompatible, match=r"1\.0 .* 1\.1"):
        client.receive(encode_message(hello_reply(protocol_minor=1)))


def test_two_of_one_role_are_refused() -> None:
    worker = WorkerConnection(reply=hello_reply(), clock=ManualClock())
    with pytest.raises(Incompatible) as caught:
        worker.receive(encode_message(hello(role=Role.PREFILL)))
    assert caught.value.code is Code.ROLE
    client = ClientConnection(hello=hello(), clock=ManualClock())
    with pytest.raises(Incompatible):
        client.receive(encode_message(hello_reply(role=Role.DECODE)))


def test_anything_before_the_hello_is_refused() -> None:
    worker = WorkerConnection(reply=hello_reply(), clock=ManualClock())
    with pytest.raises(ProtocolError):
        worker.receive(encode_message(HelloRefused(code=Code.BUSY, message="")))
    with pytest.raises(ProtocolError):
        worker.receive(b"")
    client = ClientConnection(hello=hello(), clock=ManualClock())
    with pytest.raises(ProtocolError):
        client.receive(encode_message(hello()))


def control_frame(fields: dict[str, object]) -> bytes:
    body = msgspec.msgpack.encode(fields)
    return b"BN\x01\0" + len(body).to_bytes(4, "little") + body

"""A fence is a round trip: what it frees is free only when all that was queued before it has gone, at both ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from engine.cache.spec import CacheSpec, KVType, LayerKind, LayerSpec
from engine.handoff.client_events import Failed, Finished, Released
from engine.wire.messages import Code, Role, layer_shapes
from tests.engine.handoff.pairs import (
    TIMEOUT_S,
    ClientSide,
    WorkerSide,
    courier_config,
    digest,
    identity,
    landings,
    pair,
)
from tests.faults.relay import Relay

pytestmark = pytest.mark.fault

_N_TOKENS = 384

# A frame is more than all buffers between the two hold: while nobody reads, something of it is still at the worker.
_SPEC = CacheSpec(
    layers=(LayerSpec(kind=LayerKind.ATTENTION, n_kv_heads=64, k_head_dim=1024, v_head_dim=1024),),
    kv_type=KVType.BF16,
    n_ctx=_N_TOKENS,
    n_slots=1,
)


@pytest.fixture
def relayed(tmp_path: Path) -> Iterator[tuple[ClientSide, WorkerSide, Relay]]:
    """Both sides, joined through a relay; the worker has room for one prompt, the client for two."""
    relay = Relay()
    with pair(tmp_path, start=False, spec=_SPEC, client_slots=2) as (client, worker):
        model = identity(layers=layer_shapes(_SPEC))
        config = courier_config(Role.PREFILL, worker.folder, client.identity.fingerprint, identity=model)
        relay.target = worker.start(msgspec.structs.replace(config, listen="127.0.0.1:0")) or 0
        config = courier_config(Role.DECODE, client.folder, worker.identity.fingerprint, identity=model)
        client.start(msgspec.structs.replace(config, dial=f"127.0.0.1:{relay.port}"))
        client.wait_ready()
        yield client, worker, relay
    relay.close()


def test_nothing_is_free_before_what_was_queued_has_gone(
    relayed: tuple[ClientSide, WorkerSide, Relay],
) -> None:
    client, worker, relay = relayed
    with relay.last_held() as data_came:
        places = landings(0, _N_TOKENS, _SPEC)
        client.opened.start(1, range(_N_TOKENS), 0, _N_TOKENS, places, _N_TOKENS)
        assert data_came.wait(TIMEOUT_S)
        client.opened.cancel(1)
        client.ask(2, _N_TOKENS, slot=1)
        # The pool is full with the second. Each of these takes a way round all that the cancel has set going: through
        # both couriers and both engines.
        for request in (3, 4, 5):
            client.ask(request, _N_TOKENS, slot=1)
            refused = client.wait_end(request)
            assert isinstance(refused, Failed) and refused.code == Code.BUSY
        assert len(worker.prefiller.begun) == 1, "the worker took the memory that is still being sent"
        assert not [event for event in client.events if isinstance(event, Released) and event.request_id == 1]
    assert client.wait_end(1) is None
    assert isinstance(client.wait_end(2), Finished)
    assert digest(client.memory, 0, _N_TOKENS, slot=1, spec=client.spec) == digest(
        worker.memory, 0, _N_TOKENS, spec=_SPEC
    )

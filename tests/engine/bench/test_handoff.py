"""The handoff bench: real couriers, small caches; what it prints, and that it looks at what landed."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import threading
import types
from pathlib import Path

import pytest

from engine.bench import couriers, netns, saturate
from engine.bench.couriers import LOOPBACK, Caches, HandoffConfig, caches, joined, opened
from engine.bench.geometries import GEOMETRIES, Geometry
from engine.bench.handoff import add_arguments, measure, run
from engine.bench.paced import PacedPrefiller, landings_for
from engine.cache.spec import CacheSpec, KVType, Landing, LayerKind, LayerSpec
from engine.errors import HostError, OutOfMemory, UserError
from engine.handoff.checkpoints import Checkpoints
from engine.handoff.codec_choice import CodecPolicy
from engine.handoff.prefiller import Part
from engine.handoff.shared import SharedMemory, landing_spans
from engine.wire.limits import MAX_DATA_STREAMS, MAX_PROMPT_TOKENS, MIN_CHUNK_TOKENS

SMALL = Geometry(
    name="small",
    note="one layer of each kind",
    layers=(
        LayerSpec(kind=LayerKind.ATTENTION, n_kv_heads=2, k_head_dim=16, v_head_dim=24),
        LayerSpec(kind=LayerKind.WINDOW, n_kv_heads=1, k_head_dim=8, v_head_dim=12, window=9),
        LayerSpec(kind=LayerKind.RECURRENT, state_bytes=5001),
    ),
)


def config(**changes: object) -> HandoffConfig:
    fields = {"geometry": SMALL, "tokens": 100, "chunk_tokens": 32, "compute_ms_per_chunk": 1.0}
    return HandoffConfig(**(fields | changes))  # type: ignore[arg-type]


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


def test_the_geometry_of_the_target_has_its_measures() -> None:
    layers = GEOMETRIES["qwen3.6-27b"].layers
    assert len(layers) == 64
    assert [index for index, layer in enumerate(layers) if layer.kind is LayerKind.ATTENTION] == list(
        range(3, 64, 4)
    )
    assert round(sum(layer.state_bytes for layer in layers) / 2**20, 1) == 149.6
    spec = CacheSpec(layers=layers, kv_type=KVType.BF16, n_ctx=28_800, n_slots=1)
    n_bytes = sum(n for _, n in landing_spans(landings_for(spec, 28_800)))
    assert round(n_bytes / 1e9, 2) == 2.04


def test_it_measures_a_real_handoff() -> None:
    report = measure(config())
    assert report.bytes == 99 * 2 * 2 * 40 + 8 * 2 * 20 + 5001
    assert 0 <= report.overlap <= 1
    assert report.tail_ms >= 0 and report.goodput_gbps > 0
    assert report.ceiling_gbps is None and report.tail_limit_ms is None


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("codec", [CodecPolicy.LOSSLESS, CodecPolicy.INT8])
def test_what_a_codec_makes_of_the_cache_is_what_lands(codec: CodecPolicy, streams: int) -> None:
    report = measure(config(tokens=300, codec=codec, data_streams=streams))
    assert report.codec == codec and report.codec_reason == f"--codec {codec} was set"
    rows_bytes = 299 * 2 * 2 * 40 + 8 * 2 * 20
    assert report.bytes == rows_bytes + 5001
    assert 5001 + rows_bytes // 2 < report.wire_bytes < 5001 + 0.9 * rows_bytes


def test_auto_is_measured_once_it_knows_the_link() -> None:
    """Frames of the small cache tell nothing, and so the second handoff is raw like the first."""
    report = measure(config(codec=CodecPolicy.AUTO))
    assert (report.codec, report.codec_reason) == ("raw", "the link has not been measured yet")


def test_a_saturated_link_is_measured_raw() -> None:
    with pytest.raises(UserError, match="leave --codec out"):
        run(parse("--saturate", "--codec", "int8"))


def test_several_streams_share_the_layers() -> None:
    assert measure(config(data_streams=3)).bytes == 99 * 2 * 2 * 40 + 8 * 2 * 20 + 5001


def test_json_has_exactly_the_fields_promised(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setitem(GEOMETRIES, "small", SMALL)
    assert run(parse("--geometry", "small", "--tokens", "33", "--compute-ms-per-chunk", "0", "--json")) == 0
    assert list(json.loads(capsys.readouterr().out)) == [
        "bytes",
        "wire_bytes",
        "codec",
        "codec_reason",
        "overlap",
        "tail_ms",
        "tail_limit_ms",
        "goodput_gbps",
        "ceiling_gbps",
        "cpu_s_per_gb",
    ]


def test_the_limit_of_the_tail_is_what_the_busiest_layer_leaves() -> None:
    spec = config().spec
    prefiller = PacedPrefiller(spec, chunk_tokens=25, compute_s=1.0)
    chunks = [(0, 25), (25, 50)]
    sent = [25 * 2 * 2 * 40, 8 * 2 * 20, 5001]
    # A link so fast that only the last layer, after which nothing is computed, has to be waited for.
    assert prefiller.tail_limit_s(chunks, bytes_per_s=1e6) == pytest.approx(5001e-6)
    # Packed rows take less of it; the state is sent as it is.
    limit_s = prefiller.tail_limit_s(chunks, bytes_per_s=1000, packed=0.5)
    assert limit_s == pytest.approx((sum(sent[:2]) / 2 + 5001) / 1000 - (1 - 0.1 / 2.4))
    # A slow one, busy from the first layer of the last chunk on; 0.1 of 2.4 of the compute is over by then.
    expected = sum(sent) / 1000 - (1 - 0.1 / 2.4)
    assert prefiller.tail_limit_s(chunks, bytes_per_s=1000) == pytest.approx(expected)


@pytest.mark.root
def test_auto_packs_what_goes_over_a_slow_link() -> None:
    try:
        netns.check_possible()
    except HostError as error:
        pytest.skip(str(error))
    large = GEOMETRIES["llama-8b"]
    report = measure(
        config(
            geometry=large,
            tokens=129,
            chunk_tokens=128,
            compute_ms_per_chunk=0.0,
            link="netns:100mbit",  # so slow that every processor packs sooner than the cable carries
            codec=CodecPolicy.AUTO,
        )
    )
    assert report.codec == "lossless", report.codec_reason
    assert "expected with lossless" in report.codec_reason
    assert report.wire_bytes < 0.7 * report.bytes


@pytest.mark.root
def test_it_measures_a_handoff_over_a_cable() -> None:
    try:
        netns.check_possible()
    except HostError as error:
        pytest.skip(str(error))
    report = measure(config(link="netns:1gbit"))
    assert report.bytes == 99 * 2 * 2 * 40 + 8 * 2 * 20 + 5001
    assert report.ceiling_gbps is not None and 0 < report.ceiling_gbps < 1.01
    assert report.tail_limit_ms is not None and 0 <= report.tail_limit_ms < report.tail_ms + 1


def test_a_saturated_link_is_measured_beside_a_bare_connection() -> None:
    report = saturate.measure(config(compute_ms_per_chunk=0.0), runs=1)
    assert report.bytes == 99 * 2 * 2 * 40 + 8 * 2 * 20 + 5001
    assert report.of_tls_pair == report.goodput_gbps / report.tls_pair_gbps > 0


def test_windows_and_states_that_come_twice_lie_in_both_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint and the end, over real couriers: a paced state is the same whenever it is sent."""
    monkeypatch.setattr(Checkpoints, "is_due", lambda self, chunk: chunk == 1)
    # A checkpoint that is still coming when the end comes gives its place to it.
    small = config(compute_ms_per_chunk=200.0)
    with opened(LOOPBACK) as link, caches(small) as memory:
        memory.landings = tuple(with_second_place(landing, small.spec) for landing in memory.landings)
        with joined(small, link, memory) as pair:
            finished = pair.hand_over().finished
        memory.check()
        states = small.spec.checkpoint_bytes()
        assert finished.payload_bytes == 99 * 2 * 2 * 40 + 2 * states
        for landing in memory.landings[1:]:
            rows = landing.spare_rows
            for offset, distance, n_bytes in (
                (landing.k_offset, rows * landing.k_row_bytes, rows * landing.k_row_bytes),
                (landing.v_offset, rows * landing.v_row_bytes, rows * landing.v_row_bytes),
                (
                    landing.state_offset,
                    landing.spare_state_offset - landing.state_offset,
                    landing.state_bytes,
                ),
            ):
                second = memory.landing.buffer[offset + distance : offset + distance + n_bytes]
                assert second == memory.source.buffer[offset : offset + n_bytes]


def with_second_place(landing: Landing, spec: CacheSpec) -> Landing:
    match landing.kind:
        case LayerKind.WINDOW:
            return dataclasses.replace(landing, spare_rows=spec.layers[landing.layer].window - 1)
        case LayerKind.RECURRENT:
            spare = spec.regions(0)[landing.layer].spare_state_offset
            return dataclasses.replace(landing, spare_state_offset=spare)
    return landing


def test_bytes_that_land_wrong_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    check = Caches.check

    def spoil_and_check(caches: Caches) -> None:
        offset, n_bytes = landing_spans(caches.landings)[-1]
        caches.landing.buffer[offset + n_bytes - 1] ^= 1
        check(caches)

    monkeypatch.setattr(Caches, "check", spoil_and_check)
    with pytest.raises(HostError, match="not what was sent"):
        measure(config())


@pytest.mark.parametrize(
    ("flag", "value", "sentence"),
    [
        ("--tokens", "1", "at least 2 is needed here"),
        ("--tokens", "99999999", f"at most {MAX_PROMPT_TOKENS} is allowed here"),
        ("--chunk", "1", f"at least {MIN_CHUNK_TOKENS} is needed here"),
        ("--compute-ms-per-chunk", "-1", "at least 0 is needed here"),
        ("--compute-ms-per-chunk", "2e6", "at most 1000000 is allowed here"),
        ("--compute-ms-per-chunk", "nan", "a number is needed here"),
        ("--streams", "9", f"at most {MAX_DATA_STREAMS} is allowed here"),
    ],
)
def test_settings_out_of_range_are_refused(flag: str, value: str, sentence: str) -> None:
    with pytest.raises(UserError, match=f"^{flag} {value}: {sentence}$"):
        parse(f"{flag}={value}")


def test_paced_layers_come_in_order_and_take_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is ours: each layer is there when its share is over, in chunks of any size, and none early."""
    now_s = 100.0
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal now_s
        slept.append(seconds)
        now_s += seconds

    monkeypatch.setattr("engine.bench.paced.time.monotonic", lambda: now_s)
    monkeypatch.setattr("engine.bench.paced.time.sleep", sleep)
    spec = CacheSpec(layers=SMALL.layers * 4, kv_type=KVType.BF16, n_ctx=100, n_slots=1)
    prefiller = PacedPrefiller(spec, chunk_tokens=50, compute_s=0.3)
    came: list[tuple[int, float]] = []

    def on_layer(layer: int) -> None:
        came.append((layer, now_s - 100.0))

    prefiller.compute([Part(sequence=0, first=0, end=25, on_layer=on_layer)])
    assert [layer for layer, _ in came] == list(range(12))
    assert came[-1][1] == pytest.approx(0.15)
    gaps = [after - before for (_, before), (_, after) in itertools.pairwise(came)]
    assert min(gaps) > 0 and sum(slept) == pytest.approx(0.15)


def test_what_is_paced_lies_where_it_lands() -> None:
    spec = config().spec
    prefiller = PacedPrefiller(spec, chunk_tokens=32, compute_s=0)
    chunks = [(0, 25), (25, 50), (50, 75), (75, 99)]
    sent = sorted(
        span
        for first, end in chunks
        for layer in range(3)
        for span in prefiller.spans(0, layer, first, end, final=end == 99, start=0, stop=99)
    )
    covered = bytearray(spec.total_bytes())
    for offset, n_bytes in sent:
        assert not any(covered[offset : offset + n_bytes])
        covered[offset : offset + n_bytes] = b"\1" * n_bytes
    landed = bytearray(spec.total_bytes())
    for offset, n_bytes in landing_spans(landings_for(spec, 99)):
        landed[offset : offset + n_bytes] = b"\1" * n_bytes
    assert covered == landed


@pytest.mark.soak
def test_eight_gigabytes_take_no_memory_beside_the_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paced and raw, on loopback. All of it is sent from the same few pages: only the slot has to have room."""
    eight = config(
        geometry=GEOMETRIES["llama-8b"], tokens=61_037, chunk_tokens=512, compute_ms_per_chunk=300.0
    )
    _skip_without_memory(eight.spec.total_bytes() + (2 << 30))
    spans = PacedPrefiller.spans
    monkeypatch.setattr(
        PacedPrefiller,
        "spans",
        lambda self, *places, **more: [(0, n_bytes) for _, n_bytes in spans(self, *places, **more)],
    )
    source, landing = SharedMemory.create(64 << 20), SharedMemory.create(eight.spec.total_bytes())
    try:
        with opened(LOOPBACK) as link, joined(eight, link, Caches(eight, source, landing)) as pair:
            processes = [*pair.courier_pids, os.getpid()]
            before = sum(map(_own_bytes, processes))
            peak, over = before, threading.Event()

            def watch() -> None:
                nonlocal peak
                while not over.wait(0.05):
                    peak = max(peak, sum(map(_own_bytes, processes)))

            watcher = threading.Thread(target=watch)
            watcher.start()
            try:
                run = pair.hand_over()
            finally:
                over.set()
                watcher.join()
        assert run.finished.payload_bytes >= 8e9
        print(f"{run.finished.payload_bytes / 1e9:.2f} GB took {(peak - before) >> 20} MiB beside the slot")
        assert peak - before <= 256 << 20
    finally:
        source.close_descriptor()
        landing.close_descriptor()


def _own_bytes(pid: int) -> int:
    """Memory of a process that it shares with nobody."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))


def _skip_without_memory(n_bytes: int) -> None:
    known = Path("/proc/meminfo")
    if not known.exists():
        pytest.skip("this system does not tell a process's memory")
    free = next(line for line in known.read_text().splitlines() if line.startswith("MemAvailable"))
    if 1024 * int(free.split()[1]) < n_bytes:
        pytest.skip(f"{n_bytes / 1e9:.0f} GB of memory have to be free")


def test_more_than_memory_holds_is_refused_before_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    free = 2 * config().spec.total_bytes() - 1
    monkeypatch.setattr(couriers.psutil, "virtual_memory", lambda: types.SimpleNamespace(available=free))
    with pytest.raises(OutOfMemory, match=r"GB, and .* GB are free: take fewer --tokens"):
        measure(config())

"""llama.cpp's features against the processor's, and the search for its best number of threads."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from engine.bench import peer as peers
from engine.bench.peer import PeerInfo
from engine.bench.subject import Subject
from engine.errors import InvalidRequest, ProcessFailed
from tests.engine.bench.contestants import PROGRAM, fake

GENERIC = (
    "CPU : SSE3 = 1 | AVX = 1 | AVX2 = 1 | F16C = 1 | FMA = 1 | BMI2 = 1 | LLAMAFILE = 1 | REPACK = 1 | "
)
NATIVE = GENERIC + "AVX512 = 1 | AVX512_VNNI = 1 | AVX512_BF16 = 0 | "
THIS_PROCESSOR = frozenset({"AVX", "AVX2", "FMA", "AVX512", "AVX512_VNNI"})


@pytest.fixture(autouse=True)
def processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "expected_features", lambda: THIS_PROCESSOR)


def info_of(**config: object) -> PeerInfo:
    with fake(**config) as peer:
        return peers.peer_info(peer)


def test_features_are_those_that_are_on() -> None:
    assert peers.features_of("CPU : AVX = 1 | AVX2 = 0 | SVE_CNT = 16 | AMX_INT8 = 0 |") == ("AVX", "SVE_CNT")


def test_a_native_peer_is_accepted() -> None:
    info = info_of(system_info=NATIVE)
    assert info.missing == ()
    assert "AVX512_BF16" not in info.features
    peers.check_native(info, on_gpu=False, allow_generic=False)


def test_a_generic_peer_is_refused_by_the_names_of_what_it_lacks() -> None:
    info = info_of(system_info=GENERIC)
    assert info.missing == ("AVX512", "AVX512_VNNI")
    with pytest.raises(InvalidRequest, match=r"it lacks AVX512, AVX512_VNNI.*--allow-generic-peer"):
        peers.check_native(info, on_gpu=False, allow_generic=False)


def test_a_generic_peer_may_be_allowed() -> None:
    peers.check_native(info_of(system_info=GENERIC), on_gpu=True, allow_generic=True)


def test_a_peer_without_a_gpu_is_no_match_for_one_with() -> None:
    info = info_of(system_info=NATIVE, gpu=False)
    with pytest.raises(InvalidRequest, match="built without a GPU"):
        peers.check_native(info, on_gpu=True, allow_generic=False)
    peers.check_native(info_of(system_info=NATIVE, gpu=True), on_gpu=True, allow_generic=False)


def test_the_fastest_number_of_threads_is_found_and_set() -> None:
    with fake(threads_s={"1": 0.3, "2": 0.1, "3": 0.2}) as peer:
        best = peers.find_threads(peer, n_cores=3, tokens=list(range(200)))
        assert (best.decode, best.prefill) == (2, 2)
        assert peer.ask("decode", tokens=[1], depth=[])["seconds"] == 0.1


@pytest.mark.parametrize(
    ("n_cores", "counts"),
    [(1, [1]), (2, [1, 2]), (8, [1, 2, 3, 4, 5, 6, 7, 8]), (12, [3, 6, 9, 12]), (64, [16, 32, 48, 64])],
)
def test_many_cores_are_not_all_tried(n_cores: int, counts: list[int]) -> None:
    assert peers.thread_counts(n_cores) == counts


def test_a_missing_peer_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    # -S: without site-packages no Python has the package
    monkeypatch.setattr(
        peers, "Subject", lambda name, command, env: Subject(name, [command[0], "-S", *command[1:]], env=env)
    )
    monkeypatch.setenv(peers.PYTHON_VARIABLE, sys.executable)
    with pytest.raises(ProcessFailed) as failure:
        peers.start_peer()
    assert str(failure.value) == (
        f"llama.cpp did not start: {sys.executable} has no package llama_cpp\n"
        "`make peer` builds llama.cpp for this computer; $BATON_PEER_PYTHON names a Python that has it already"
    )


def test_a_peer_whose_library_is_broken_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "llama_cpp.py").write_text("raise RuntimeError('libllama.so is for another computer')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ProcessFailed, match=r"cannot load llama_cpp: libllama\.so is for another") as failure:
        peers.start_peer()
    assert "Traceback" not in str(failure.value)


def test_the_peers_python_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(peers.PYTHON_VARIABLE, "/nonexistent/python")
    with pytest.raises(ProcessFailed, match="/nonexistent/python"):
        peers.start_peer(PROGRAM)


def test_the_peers_program_imports_nothing_of_baton() -> None:
    source = peers.PROGRAM.read_text(encoding="utf-8")
    assert "import engine" not in source
    assert "from engine" not in source

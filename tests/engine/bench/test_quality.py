"""The quality bench on tiny models: the reference agrees with itself, packed weights and perturbed ones do not."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.bench import peer as peers
from engine.bench import quality
from engine.bench.divergence import Divergence, divergence
from engine.bench.quality import DECODE, INT8, PEER_BATCH, PREFILL, PROMPT, Reader, compare, cut_windows
from engine.bench.subject import Subject
from engine.cache.spec import KVType
from engine.errors import InvalidRequest, ProcessFailed, UserError
from engine.gguf.reader import GGUFFile
from engine.models.base import Model
from engine.models.registry import WeightsMode, load_model
from engine.tokenizer import Tokenizer
from tests.engine.bench.contestants import fake
from tests.engine.models.running import MULTIPLIES_BFLOAT16
from tests.engine.models.tiny import Array, Quant, config_of, draw_weights, write_model, write_tiny

N_TOKENS = 40


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny("qwen2", tmp_path_factory.mktemp("quality") / "tiny.gguf", quant=Quant.Q8_0)


def reader(model: Model, kv_type: KVType = KVType.F32) -> Reader:
    return Reader(model, kv_type, N_TOKENS)


def reference_model(path: Path) -> Model:
    return load_model(path, device="cpu", weights=WeightsMode.FLOAT32)


def windows_for(model: Model) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(model.spec.n_vocab, (n,), generator=generator).tolist() for n in (N_TOKENS, 17)]


def test_divergence_is_what_the_definition_says() -> None:
    p, q = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.25, 0.5])
    wanted = 0.5 * math.log(2) - 0.25 * math.log(2)
    found = divergence(p.log().unsqueeze(0), q.log().unsqueeze(0) + 3)
    assert float(found) == pytest.approx(wanted)
    assert float(divergence(p.log().unsqueeze(0), p.log().unsqueeze(0))) == 0.0


def test_scores_add_up_over_calls() -> None:
    torch.manual_seed(0)
    reference, logits = torch.randn(100, 11), torch.randn(100, 11)
    at_once, in_parts = Divergence(), Divergence()
    at_once.add(reference, logits)
    for first in range(0, 100, 7):
        in_parts.add(reference[first : first + 7], logits[first : first + 7])
    one, other = at_once.score(), in_parts.score()
    assert other.kld == pytest.approx(one.kld)
    assert other.kld_error == pytest.approx(one.kld_error)
    assert one.kld == pytest.approx(float(divergence(reference, logits).mean()))
    assert one.kld_error == pytest.approx(float(divergence(reference, logits).std(unbiased=False)) / 10)
    assert one.same_top == int((reference.argmax(1) == logits.argmax(1)).sum()) / 100
    assert other.n_tokens == 100


@pytest.mark.parametrize("family", ["qwen2", "gemma3"])
def test_the_reference_agrees_with_itself(family: str, tmp_path: Path) -> None:
    model = reference_model(write_tiny(family, tmp_path / "tiny.gguf"))
    scores, _ = compare(windows_for(model), reader(model), reader(model), None)
    for way in (PROMPT, DECODE, PREFILL):
        assert abs(scores[way].kld) < 1e-8, way
        assert scores[way].same_top == 1.0, way
        assert scores[way].n_tokens == N_TOKENS + 17


def test_served_forms_stray_a_little(tiny_path: Path) -> None:
    reference, model = reference_model(tiny_path), load_model(tiny_path, device="cpu")
    scores, _ = compare(windows_for(model), reader(reference), reader(model, KVType.BF16), None)
    for way in (PROMPT, DECODE, PREFILL):
        assert 1e-8 < scores[way].kld < 1e-2, way
    if MULTIPLIES_BFLOAT16:
        assert scores[PREFILL].kld > scores[DECODE].kld  # bf16 weights and activations against float32 ones


def test_perturbed_weights_stray_more(tmp_path: Path) -> None:
    config, weights = config_of("llama"), draw_weights(config_of("llama"), 3)

    def perturb(tensors: dict[str, Array]) -> None:
        tensors["blk.1.ffn_down.weight"] = tensors["blk.1.ffn_down.weight"] * 1.1

    sound = reference_model(write_model(config, tmp_path / "sound.gguf", weights))
    spoilt = reference_model(write_model(config, tmp_path / "spoilt.gguf", weights, edit=perturb))
    scores, _ = compare(windows_for(sound), reader(sound), reader(spoilt), None)
    for way in (PROMPT, DECODE, PREFILL):
        assert scores[way].kld > 1e-6, way


def test_prompted_positions_see_a_prefilled_cache(tiny_path: Path) -> None:
    model = load_model(tiny_path, device="cpu")
    tokens = windows_for(model)[0]
    one = reader(model, KVType.BF16)
    prompted, decoded = dict(one.prompted(tokens)), dict(one.decoded(tokens))
    assert sorted(prompted) == sorted(decoded) == list(range(N_TOKENS))
    assert torch.equal(prompted[0], decoded[0])  # nothing was prefilled before it
    assert not torch.equal(prompted[N_TOKENS - 1], decoded[N_TOKENS - 1])


@pytest.mark.parametrize("kv_type", [KVType.BF16, KVType.F32])
@pytest.mark.parametrize("family", ["qwen2", "gemma3"])
def test_rows_that_came_by_int8_stray_a_little_more(family: str, kv_type: KVType, tmp_path: Path) -> None:
    model = reference_model(write_tiny(family, tmp_path / "tiny.gguf"))
    scores, _ = compare(windows_for(model), reader(model), reader(model, kv_type), None)
    assert scores[PROMPT].kld < scores[INT8].kld < 1e-2
    assert scores[INT8].n_tokens == N_TOKENS + 17


def test_a_token_is_decoded_over_int8_rows_of_all_before_it_and_its_own_is_whole(tiny_path: Path) -> None:
    one = reader(load_model(tiny_path, device="cpu"), KVType.BF16)
    tokens = windows_for(one._model)[0]
    sequence = one._sequence
    whole = dict(one.prompted(tokens))
    packed = one.prompted(tokens, by_int8=True)
    position, logits = next(packed)
    assert position == N_TOKENS - 1 and not torch.equal(logits, whole[position])
    landed = [cache.k[:position].clone() for cache in sequence.layers]
    one._pass_over_wire(0, position)
    # What int8 has made of rows it makes of them again, to within one rounding.
    for before, cache in zip(landed, sequence.layers, strict=True):
        assert torch.allclose(before.float(), cache.k[:position].float(), rtol=2**-7)
    assert torch.equal(dict(packed)[0], whole[0])  # nothing came before it


def test_windows_hold_the_whole_text_and_begin_as_the_model_wants(tiny_path: Path) -> None:
    tokenizer = Tokenizer.from_metadata(GGUFFile.open(tiny_path).metadata)
    text = "the baton passes from one runner to the next " * 3
    windows = cut_windows(tokenizer, text, 32)
    assert [token for window in windows for token in window] == tokenizer.encode(
        text, add_special=False, parse_special=False
    )[: sum(map(len, windows))]
    assert {len(window) for window in windows[:-1]} == {32}
    assert cut_windows(tokenizer, "too short", 32) == []


def test_the_text_is_long_and_varied() -> None:
    text = quality.quality_text()
    assert len(text.split()) > 1500
    for sample in ("def ", "SELECT", "を", "数", "копию", "ö", "ñ", "é"):
        assert sample in text


def args_for(path: Path, *flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    quality.add_arguments(parser)
    return parser.parse_args(["--model", str(path), "--window-tokens", "24", "--windows", "2", *flags])


def fake_peer(n_vocab: int, system_info: str = "AVX = 1") -> Callable[[], Subject]:
    return lambda: fake("llama.cpp", n_vocab=n_vocab, system_info=system_info)


def test_json_beside_a_peer(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peers, "expected_features", lambda: frozenset({"AVX"}))
    monkeypatch.setattr(peers, "start_peer", fake_peer(config_of("qwen2").n_vocab))
    assert quality.run(args_for(tiny_path, "--peer", "llama.cpp", "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["n_windows"] == 2
    assert found["own"][DECODE]["n_tokens"] == 48
    assert found["kld"] == max(found["own"][PROMPT]["kld"], found["own"][DECODE]["kld"])
    assert found["same_top"] == min(found["own"][PROMPT]["same_top"], found["own"][DECODE]["same_top"])
    # The fake's logits say nothing, so they stray far.
    assert found["peer_kld"] == found["peer"][PEER_BATCH]["kld"] > 0.1
    assert found["peer_same_top"] < 0.5
    assert found["peer_features"] == ["AVX"]


def test_text_without_a_peer(tiny_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert quality.run(args_for(tiny_path)) == 0
    lines = capsys.readouterr().out
    assert "Baton prompt" in lines
    assert "llama.cpp" not in lines


def test_a_generic_peer_is_refused(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "expected_features", lambda: frozenset({"AVX", "AVX512"}))
    monkeypatch.setattr(peers, "start_peer", fake_peer(config_of("qwen2").n_vocab))
    with pytest.raises(InvalidRequest, match="lacks AVX512"):
        quality.run(args_for(tiny_path, "--peer", "llama.cpp"))


def test_a_peer_that_is_missing_is_missed_before_anything_is_loaded(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(peers.PYTHON_VARIABLE, "/nonexistent/python")
    monkeypatch.setattr(quality, "load_model", lambda *_, **__: pytest.fail("a model was loaded"))
    with pytest.raises(ProcessFailed, match="/nonexistent/python"):
        quality.run(args_for(tiny_path, "--peer", "llama.cpp"))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"too short", "short.txt: the text has fewer than 16 tokens; choose a longer one"),
        (b"so \xff", r"short.txt: this is not text in UTF-8 \(byte 4 is wrong\); save it in UTF-8"),
        (b"", "fewer than 16 tokens"),
    ],
)
def test_texts_that_cannot_be_used_are_refused(
    tiny_path: Path, tmp_path: Path, content: bytes, sentence: str
) -> None:
    short = tmp_path / "short.txt"
    short.write_bytes(content)
    with pytest.raises(UserError, match=f"--text .*{sentence}"):
        quality.run(args_for(tiny_path, "--text", str(short)))


def test_a_text_that_cannot_be_read_is_refused_in_words(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, sentence in (
        (str(tmp_path / "absent.txt"), "absent.txt: no such file"),
        (str(tmp_path), "this is a folder, and a text is needed"),
        ("~no-such-user/text", "home folder of ~no-such-user"),
    ):
        with pytest.raises(UserError, match=sentence) as refused:
            quality.run(args_for(tiny_path, "--text", name))
        assert "Errno" not in str(refused.value)
    monkeypatch.setattr(quality, "_MAX_TEXT_BYTES", 1 << 20)
    with pytest.raises(UserError, match="the text has more than 1 MB"):
        quality.read_text("/dev/zero")


@pytest.mark.parametrize(
    ("flag", "value", "sentence"),
    [
        ("--windows", "0", "--windows 0: at least 1 is needed here"),
        ("--windows", "-1", "--windows -1: at least 1 is needed here"),
        ("--window-tokens", "15", "--window-tokens 15: at least 16 is needed here"),
        ("--window-tokens", "99999", r"--window-tokens 99999: the model's context holds \d+ tokens"),
        ("--text", "", "--text is empty: it takes FILE"),
    ],
)
def test_windows_that_cannot_be_made_are_refused(
    tiny_path: Path, flag: str, value: str, sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        quality.run(args_for(tiny_path, f"{flag}={value}"))

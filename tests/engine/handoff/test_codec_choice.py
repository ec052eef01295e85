"""Which codec a handoff takes, and what it says of that."""

from __future__ import annotations

import pytest

from engine.handoff.codec_choice import CodecChoice, CodecChooser, CodecPolicy
from engine.wire.blocks import LosslessSpeed
from engine.wire.codec import CODECS, PayloadCodec

RAW, LOSSLESS, INT8 = PayloadCodec


class Packing:
    """Packs 1 GB/s into two thirds, and counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self) -> LosslessSpeed:
        self.asked += 1
        return LosslessSpeed(bytes_per_s=1e9, ratio=0.66)


def auto() -> tuple[CodecChooser, Packing]:
    packing = Packing()
    return CodecChooser(CodecPolicy.AUTO, speed=packing), packing


def see(chooser: CodecChooser, codec: PayloadCodec, gb_per_s: float) -> None:
    chooser.observe(codec, timed_bytes=int(gb_per_s * 1e9), timed_us=1_000_000)


@pytest.mark.parametrize("codec", PayloadCodec)
def test_what_is_set_is_taken(codec: PayloadCodec) -> None:
    chooser = CodecChooser(CodecPolicy(codec.label), speed=Packing())
    see(chooser, RAW, 0.01)
    assert chooser.choose(CODECS) == CodecChoice(codec=codec, reason=f"--codec {codec.label} was set")


def test_what_the_worker_does_not_know_is_sent_raw() -> None:
    choice = CodecChooser(CodecPolicy.INT8, speed=Packing()).choose(("raw", "lossless"))
    assert choice.codec is RAW and "--codec int8 was set, which the worker does not know" in choice.reason
    choice = auto()[0].choose(("raw", "int8"))
    assert choice.codec is RAW and "the worker knows no other" in choice.reason


def test_a_link_is_measured_before_it_is_judged() -> None:
    chooser, packing = auto()
    assert chooser.choose(CODECS).reason == "the link has not been measured yet"
    see(chooser, INT8, 0.1)  # says nothing of rows that come whole
    chooser.observe(RAW, timed_bytes=0, timed_us=0)  # all frames were small
    assert chooser.choose(CODECS) == CodecChoice(codec=RAW, reason="the link has not been measured yet")
    assert packing.asked == 0


@pytest.mark.parametrize(
    "link, codec, reason",
    [
        (0.1, LOSSLESS, "0.13 GB/s expected with lossless, 0.10 GB/s measured raw"),
        (0.2, LOSSLESS, "0.23 GB/s expected with lossless, 0.20 GB/s measured raw"),
        (0.3, RAW, "0.31 GB/s expected with lossless, 0.30 GB/s measured raw"),
        (2.0, RAW, "0.75 GB/s expected with lossless, 2.00 GB/s measured raw"),
    ],
)
def test_packing_is_for_links_slower_than_it(link: float, codec: PayloadCodec, reason: str) -> None:
    chooser, packing = auto()
    see(chooser, RAW, link)
    assert chooser.choose(CODECS) == CodecChoice(codec=codec, reason=reason)
    chooser.choose(CODECS)
    assert packing.asked == 1


def test_what_was_measured_outweighs_what_was_expected() -> None:
    chooser, _ = auto()
    see(chooser, RAW, 0.6)
    see(chooser, LOSSLESS, 0.55)  # the worker packs more slowly than this computer would
    choice = chooser.choose(CODECS)
    assert choice.codec is RAW
    assert choice.reason == "0.55 GB/s measured with lossless, 0.60 GB/s measured raw"


def test_what_was_measured_at_another_speed_of_the_link_does_not_count() -> None:
    chooser, _ = auto()
    see(chooser, RAW, 0.6)
    see(chooser, LOSSLESS, 0.55)
    for _ in range(10):
        see(chooser, RAW, 0.1)
    assert "expected" in chooser.choose(CODECS).reason
    assert chooser.choose(CODECS).codec is LOSSLESS


def test_the_newest_counts_most_but_not_alone() -> None:
    chooser, _ = auto()
    see(chooser, RAW, 1.0)
    see(chooser, RAW, 2.0)
    assert "1.30 GB/s measured raw" in chooser.choose(CODECS).reason


def test_now_and_then_a_handoff_goes_raw_to_measure_the_link() -> None:
    chooser, _ = auto()
    see(chooser, RAW, 0.1)
    taken = []
    for _ in range(40):
        choice = chooser.choose(CODECS)
        taken.append(choice.codec)
        see(chooser, choice.codec, 0.15 if choice.codec is LOSSLESS else 0.1)
    assert [index for index, codec in enumerate(taken) if codec is RAW] == [15, 31]

"""Who prefills and who decodes: as measured, the same on both computers, and as the users wish where that can be."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.node.agreeing.measure import Measurement
from engine.node.agreeing.roles import ANSWER_TOKENS, PROMPT_TOKENS, Report, Roles, Way, Wish, agree, later

SPARK, STUDIO = "5" * 32, "a" * 32
GB = 10**9
AUTO = Wish()


def report(node_id: str, prefill: float = 0, decode: float = 0, **fields: Any) -> Report:
    measured = Measurement(
        prefill_tokens_per_s=prefill or 1, decode_tokens_per_s=decode or 1, load_s=1.0, device="cpu"
    )
    given = {
        "name": {SPARK: "spark", STUDIO: "studio"}[node_id],
        "memory_bytes": 100 * GB,
        "has_model": True,
        "needed_bytes": 10 * GB,
        "kv_bytes_per_token": 131072,
        "measurement": measured if prefill else None,
        "link_bytes_per_s": 1.2e9,
    }
    return Report(node_id=node_id, **{**given, **fields})


def agreed(one: Report, other: Report, wish: Wish = AUTO) -> Roles:
    roles = agree(one, other, wish)
    assert roles == agree(other, one, wish), "both computers have to come to the same"
    return roles


def way(roles: Roles, prefill: str, decode: str) -> Way:
    (found,) = [way for way in roles.ways if (way.prefill, way.decode) == (prefill, decode)]
    return found


def test_who_is_good_at_arithmetic_prefills_and_who_has_the_bandwidth_decodes() -> None:
    roles = agreed(report(SPARK, prefill=4000, decode=20), report(STUDIO, prefill=800, decode=60))
    assert (roles.prefill, roles.decode) == (SPARK, STUDIO)
    assert roles.reason.startswith("studio decodes: 4,000 tokens with an answer of 300 take")
    assert "with spark prefilling" in roles.reason and "only the prompts" not in roles.reason


def test_the_other_way_round_when_it_is_measured_so() -> None:
    roles = agreed(report(SPARK, prefill=800, decode=60), report(STUDIO, prefill=4000, decode=20))
    assert (roles.prefill, roles.decode) == (STUDIO, SPARK)


def test_the_times_of_all_four_ways_are_predicted() -> None:
    roles = agreed(report(SPARK, prefill=4000, decode=20), report(STUDIO, prefill=800, decode=60))
    alone = way(roles, STUDIO, STUDIO)
    assert alone.first_token_s == pytest.approx(PROMPT_TOKENS / 800 + 1 / 60)
    assert alone.total_s == pytest.approx(PROMPT_TOKENS / 800 + ANSWER_TOKENS / 60)
    split = way(roles, SPARK, STUDIO)
    # the last chunk crosses the link after it is computed, all else before
    tail_s = 512 * 131072 / 1.2e9
    assert split.first_token_s == pytest.approx(PROMPT_TOKENS / 4000 + tail_s + 1 / 60)
    assert split.total_s == pytest.approx(PROMPT_TOKENS / 4000 + tail_s + ANSWER_TOKENS / 60)
    assert len(roles.snapshot()["ways"]) == 4


def test_a_slow_link_makes_the_split_as_slow_as_it_is() -> None:
    slow = {"link_bytes_per_s": 12e6}
    roles = agreed(report(SPARK, 4000, 20, **slow), report(STUDIO, 800, 60))
    split = way(roles, SPARK, STUDIO)
    assert split.first_token_s == pytest.approx(PROMPT_TOKENS * 131072 / 12e6 + 1 / 60)
    # studio still answers soonest, if need be alone; the worker is there for prompts that pay
    assert (roles.prefill, roles.decode) == (SPARK, STUDIO)
    assert " s alone, and " in roles.reason


def test_one_that_is_better_at_both_decodes_and_the_other_helps_where_it_pays() -> None:
    roles = agreed(report(SPARK, prefill=4000, decode=60), report(STUDIO, prefill=800, decode=20))
    assert (roles.prefill, roles.decode) == (STUDIO, SPARK)
    assert " s alone, and " in roles.reason
    assert roles.reason.endswith("; studio prefills only the prompts that it is sooner with")


def test_alike_computers_are_told_apart_by_their_ids() -> None:
    roles = agreed(report(SPARK, prefill=1000, decode=30), report(STUDIO, prefill=1005, decode=30.2))
    assert roles.decode == min(SPARK, STUDIO)


@pytest.mark.parametrize("measured", [(0, 0), (4000, 0), (0, 4000)])
def test_before_both_are_measured_ids_decide_and_that_is_said(measured: tuple[float, float]) -> None:
    roles = agreed(report(SPARK, measured[0], 20), report(STUDIO, measured[1], 60))
    assert (roles.prefill, roles.decode) == (STUDIO, SPARK)
    assert "is not measured yet" in roles.reason


def test_a_model_that_fits_one_alone_is_answered_there_alone() -> None:
    small = {"memory_bytes": 8 * GB}
    roles = agreed(report(SPARK, 4000, 20), report(STUDIO, 800, 60, **small))
    assert (roles.prefill, roles.decode) == (None, SPARK)
    assert roles.reason == "spark decodes: the model takes 10.0 GB, and studio can give it 6.4 GB"


def test_memory_of_a_gpu_counts_where_the_model_is_computed_there() -> None:
    gpu = Measurement(
        prefill_tokens_per_s=9000, decode_tokens_per_s=90, load_s=1.0, device="cuda", device_bytes=8 * GB
    )
    roles = agreed(report(SPARK, measurement=gpu), report(STUDIO, 800, 60))
    assert (roles.prefill, roles.decode) == (None, STUDIO)


def test_a_model_that_fits_neither_still_gets_roles() -> None:
    huge = {"needed_bytes": 500 * GB}
    roles = agreed(report(SPARK, 4000, 20, **huge), report(STUDIO, 800, 60, **huge))
    assert roles.prefill is None and roles.decode in (SPARK, STUDIO)


def test_a_model_that_one_lacks_is_as_large_there() -> None:
    lacking = {"has_model": False, "needed_bytes": 0, "kv_bytes_per_token": 0, "memory_bytes": 8 * GB}
    assert agreed(report(SPARK, 4000, 20), report(STUDIO, **lacking)).decode == SPARK


def test_a_wish_is_met() -> None:
    wish = Wish(prefill=STUDIO, count=1, by=SPARK)
    roles = agreed(report(SPARK, 4000, 20), report(STUDIO, 800, 60), wish)
    assert (roles.prefill, roles.decode, roles.is_wish) == (STUDIO, SPARK, True)


def test_a_wish_that_cannot_be_met_is_said_to_be() -> None:
    wish = Wish(prefill=STUDIO, count=1, by=SPARK)
    roles = agreed(report(SPARK, 4000, 20), report(STUDIO, 800, 60, memory_bytes=8 * GB), wish)
    assert (roles.prefill, roles.decode, roles.is_wish) == (None, SPARK, False)
    assert "another wish cannot be met: the model takes" in roles.reason


def test_a_wish_for_a_third_computer_means_nothing_to_these_two() -> None:
    wish = Wish(prefill="c" * 32, count=1, by=SPARK)
    plain = agreed(report(SPARK, 4000, 20), report(STUDIO, 800, 60))
    assert agreed(report(SPARK, 4000, 20), report(STUDIO, 800, 60), wish) == plain


def test_of_two_wishes_the_later_holds_on_both_computers() -> None:
    first, second = Wish(prefill=SPARK, count=1, by=SPARK), Wish(prefill=STUDIO, count=1, by=STUDIO)
    third = Wish(prefill="auto", count=2, by=SPARK)
    assert later(first, second) == later(second, first) == second
    assert later(third, second) == later(second, third) == third


@pytest.mark.parametrize(
    "fields", [{"node_id": "x"}, {"memory_bytes": -1}, {"name": "x" * 300}, {"link_bytes_per_s": 0}]
)
def test_a_report_of_the_other_computer_is_checked(fields: dict[str, Any]) -> None:
    good = msgspec.to_builtins(report(SPARK, 4000, 20))
    assert msgspec.convert(good, Report) == report(SPARK, 4000, 20)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**good, **fields}, Report)

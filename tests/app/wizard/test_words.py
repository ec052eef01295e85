"""What the first run says, without a window."""

from __future__ import annotations

from typing import Any

import pytest

from app.wizard.found import candidates, networks
from app.wizard.library import memory_of, rows
from app.wizard.words import good_at, pairing_fault, short_fingerprint
from engine.node.trust.pairing import Reason

GIB = 1 << 30
COMPUTER = {
    "n_cores": 8,
    "memory_bytes": 64 * GIB,
    "gpu": "",
    "shares_memory": False,
    "gpu_limit_bytes": None,
}
MEASURED = {"prefill_tokens_per_s": 2310.0, "decode_tokens_per_s": 24.8}


def test_what_it_is_good_at_follows_from_its_parts() -> None:
    assert "8 cores" in good_at(COMPUTER, {}) and "51 GB" in good_at(COMPUTER, {})
    shared = good_at({**COMPUTER, "gpu": "GB10", "shares_memory": True}, {})
    assert "same memory" in shared and "GB10" not in shared
    limited = good_at({**COMPUTER, "gpu": "M2", "shares_memory": True, "gpu_limit_bytes": 48 * GIB}, {})
    assert "38 GB" in limited
    assert "reads long prompts" in good_at({**COMPUTER, "gpu": "RTX"}, {})


def test_what_was_measured_says_more() -> None:
    said = good_at(COMPUTER, {"measured": {"tiny": MEASURED}})
    assert "2,310 tokens/s" in said and "24.8 tokens/s" in said and "tiny" in said


def test_fingerprints_can_be_compared() -> None:
    assert short_fingerprint("9f3a61c27d5e08b4" * 4) == "9f3a 61c2 7d5e 08b4"
    assert short_fingerprint("sha256:9f3a61c27d5e08b4aa") == "9f3a 61c2 7d5e 08b4"


@pytest.mark.parametrize(
    "code",
    [
        *(str(reason) for reason in Reason),
        "wait",
        "expired",
        "none_found",
        "unreachable",
        "of a later version",
    ],
)
def test_every_fault_of_pairing_says_what_happened_and_what_to_do(code: str) -> None:
    title, what_to_do = pairing_fault(code, "The node's own words.", name="spark", wait_s=3.2)
    assert title.endswith(".") and what_to_do.endswith(".")
    assert "--" not in title + what_to_do


def found(**fields: Any) -> dict[str, Any]:
    return {
        "node_id": "a",
        "name": "spark",
        "version": "1.0",
        "addresses": ["10.71.17.2:7119"],
        "pairing_addresses": [],
    } | fields


def test_only_strangers_are_offered_who_shows_a_code_first() -> None:
    told = {
        "found": [
            found(node_id="me"),
            found(node_id="friend"),
            found(node_id="a"),
            found(node_id="b", name="attic", pairing_addresses=["10.0.0.3:7120"]),
            found(node_id=None, name="", version=None, addresses=["[fe80::1%eth0]:7119"]),
        ]
    }
    offered = candidates(told, [{"node_id": "friend"}], "me")
    assert [each.name for each in offered] == ["attic", "spark", "fe80::1%eth0"]
    assert offered[0].shows_code and "does not answer yet" in offered[2].about
    assert offered[1].about == "10.71.17.2 · Baton 1.0"


def test_networks_that_do_not_work_are_not_named() -> None:
    interfaces = [
        {"name": "eth0", "fault": ""},
        {"name": "eth0", "fault": ""},
        {"name": "en1", "fault": "no"},
    ]
    assert networks({"interfaces": interfaces}) == ["eth0"]


def model(name: str, *, digest: str | None = None, size: float = 1e8) -> dict[str, Any]:
    return {"id": name, "title": "", "size_bytes": int(size), "digest": digest, "problem": ""}


ENTRY = {"name": "starter", "title": "The Starter", "size_bytes": 98_000_000, "here": False}


def library(here: list[dict[str, Any]], there: list[dict[str, Any]]) -> dict[str, Any]:
    return {"here": {"models": here}, "peers": [{"name": "spark", "models": there}]}


def test_the_same_content_is_one_model_whatever_its_name() -> None:
    told = library([model("mine", digest="1" * 64)], [model("theirs", digest="1" * 64)])
    (row,) = rows(told, [], memory_bytes=64 * GIB)
    assert (row.name, row.here, row.peers) == ("mine", True, ("spark",))


def test_another_content_of_the_same_name_is_another_model() -> None:
    told = library([model("tiny", digest="1" * 64)], [model("tiny", digest="2" * 64)])
    names = [(row.name, row.here, row.peers) for row in rows(told, [], memory_bytes=64 * GIB)]
    assert names == [("tiny", True, ()), ("tiny (spark)", False, ("spark",))]


def test_what_both_have_comes_first_and_the_catalogue_last() -> None:
    told = library([model("big", size=5e9), model("both")], [model("both"), model("there")])
    found_rows = rows(told, [ENTRY], memory_bytes=64 * GIB)
    assert [row.name for row in found_rows] == ["both", "big", "there", "starter"]
    assert found_rows[3].in_catalogue and not found_rows[3].is_usable
    assert "is on spark" in found_rows[2].about(64 * GIB)


def test_what_does_not_fit_says_so() -> None:
    told = library([model("huge", size=60e9)], [])
    (row,) = rows(told, [], memory_bytes=memory_of(COMPUTER))
    assert not row.fits and "too large" in row.about(memory_of(COMPUTER))
    assert memory_of({**COMPUTER, "gpu_limit_bytes": 48 * GIB}) == 48 * GIB

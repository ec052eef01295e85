"""What a person reads of the link doctor's report."""

from __future__ import annotations

from typing import Any

import msgspec

from app.node.link_report import Check, checks, sentence, summary
from engine.link.findings import findings
from engine.link.report import Report
from tests.engine.link.reports import report


def read(of: Report) -> list[Check]:
    """As it comes from the node."""
    told: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(of, findings=findings(of)))
    return checks(told)


def test_a_sound_link_says_what_was_measured() -> None:
    found = read(report())
    assert {check.tone for check in found} == {"local"}
    said = " ".join(check.what for check in found)
    assert "9.9 Gb/s to studio, 9.9 Gb/s back" in said
    assert "A round trip takes 0.1 ms, 0.4 ms at worst; none of 200 lost" in said
    assert "9,000 bytes" in said and "eth1" in said
    assert summary(found) == "7 checks passed"


def test_a_finding_takes_the_place_of_what_would_be_well() -> None:
    found = read(report(to_peer={"path_mtu": 8000}))
    assert found[0].code == "mtu_black_hole" and found[0].tone == "danger" and found[0].is_tunable
    assert not any(check.code == "packets" for check in found)
    assert summary(found) == "6 checks passed, 1 could be better"


def test_nothing_of_a_terminal_is_told_to_whom_clicks() -> None:
    broken = report(
        to_peer={"path_mtu": 8000}, limits_here={"receive_granted": 4096, "receive_auto_max": None}
    )
    assert [check.code for check in read(broken)][:2] == ["mtu_black_hole", "small_buffers"]
    assert "`" not in "".join(check.what + check.why + check.fix for check in read(broken))


def test_nothing_is_offered_to_be_fixed_without_a_cable() -> None:
    loose = report(limits_here={"receive_granted": 4096, "receive_auto_max": None})
    loose = msgspec.structs.replace(loose, cable=msgspec.structs.replace(loose.cable, interface=""))
    found = {check.code: check for check in read(loose)}
    assert "small_buffers" in found and not any(check.is_tunable for check in found.values())
    assert "once a direct cable joins" in found["small_buffers"].fix
    assert "`" not in found["small_buffers"].fix


def test_a_computer_that_was_looked_at_alone() -> None:
    alone = msgspec.structs.replace(report(), peer=None)
    assert [check.code for check in read(alone)] == ["cable"]


def test_parts_of_lines_are_sentences() -> None:
    assert sentence("eth1 is up") == "eth1 is up." and sentence("packets pass") == "Packets pass."
    assert sentence("") == "" and sentence("Why?") == "Why?"

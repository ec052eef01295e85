"""Updates between paired nodes: only where they were allowed, only what the digest says, and never a step back."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from engine.errors import HostError, PeerRefused
from engine.node.setup import updates
from engine.node.setup.own_wheel import Archive
from engine.node.setup.updates import Updates, set_allowance
from tests.engine.node.glue import two_ends

DATA = b"an archive"


def update(**changes: object) -> dict[str, object]:
    return {"version": "0.2.0", "sha256": hashlib.sha256(DATA).hexdigest(), "data": DATA} | changes


class Right:
    """The older node: version 0.1.0, with an installer that writes down what it gets."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, fails: bool = False) -> None:
        self.allowance = folder / "config" / "allow-updates"
        self.installed: list[bytes] = []
        self.restarted = asyncio.Event()
        self.is_fixed = False
        self._fails = fails
        monkeypatch.setattr(updates, "_install", self._install)
        monkeypatch.setattr(updates, "_RESTART_AFTER_S", 0.0)
        self.part = Updates(
            version="0.1.0",
            name="right",
            allowance=self.allowance,
            restart=self.restarted.set,
            is_fixed=lambda: self.is_fixed,
        )

    async def _install(self, data: bytes) -> None:
        if self._fails:
            raise HostError("the update failed: no network")
        self.installed.append(data)


def run(
    job: Callable[[Right, Any], Coroutine[Any, Any, None]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    **options: bool,
) -> None:
    async def joined() -> None:
        right = Right(tmp_path, monkeypatch, **options)
        async with two_ends(tmp_path) as (left_end, right_end):
            right_end.offers.calls.update(right.part.methods())
            await job(right, left_end.link)

    asyncio.run(joined())


def test_an_allowed_update_is_installed_and_starts_the_node_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def job(right: Right, link: Any) -> None:
        left = Updates(
            version="0.2.0",
            name="left",
            allowance=tmp_path / "left",
            restart=lambda: None,
            make=lambda: Archive(version="0.2.0", data=DATA),
        )
        with pytest.raises(
            PeerRefused, match=r"right takes no updates.*baton setup-peer --allow-updates yes"
        ):
            await left.send(link)
        assert not right.restarted.is_set()
        set_allowance(right.allowance, allowed=True)
        assert await left.send(link) == "0.2.0"
        await asyncio.wait_for(right.restarted.wait(), 10)
        assert right.installed == [DATA]
        set_allowance(right.allowance, allowed=False)
        with pytest.raises(PeerRefused, match="takes no updates"):
            await left.send(link)
        assert right.installed == [DATA]

    run(job, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (update(sha256="0" * 64), "not what its digest says"),
        (update(version="0.0.9"), "runs Baton 0.1.0, and 0.0.9 is older"),
        (update(version="$(id)"), "what was asked is not valid"),
        (update(data=7), "what was asked is not valid"),
        (update(more=1), "what was asked is not valid"),
        (update(data=b"x" * (updates.MAX_ARCHIVE_BYTES + 1)), "what was asked is not valid"),
        (None, "what was asked is not valid"),
    ],
)
def test_what_is_no_update_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, params: object, words: str
) -> None:
    async def job(right: Right, link: Any) -> None:
        set_allowance(right.allowance, allowed=True)
        with pytest.raises(PeerRefused, match=words):
            await link.call("setup.update", params)
        assert right.installed == [] and not right.restarted.is_set()

    run(job, tmp_path, monkeypatch)


def test_a_checkout_or_a_bundle_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def job(right: Right, link: Any) -> None:
        set_allowance(right.allowance, allowed=True)
        right.is_fixed = True
        with pytest.raises(PeerRefused, match="in the way it was installed"):
            await link.call("setup.update", update())
        assert right.installed == []

    run(job, tmp_path, monkeypatch)


def test_a_failed_update_leaves_the_node_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def job(right: Right, link: Any) -> None:
        set_allowance(right.allowance, allowed=True)
        with pytest.raises(PeerRefused, match="no network"):
            await link.call("setup.update", update())
        assert not right.restarted.is_set()

    run(job, tmp_path, monkeypatch, fails=True)


INSTALLER = """
import json, sys
print("no JSON", flush=True)
print(json.dumps({"refused": "the words: " + " ".join(sys.argv[1:])}))
sys.exit(2)
"""


def test_the_archive_itself_is_run_on_this_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the real `_install`; what it is given here is a script and no archive."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(HostError, match=f"the words: --json --into {updates.sys.prefix}$"):
        asyncio.run(updates._install(INSTALLER.encode()))
    asyncio.run(updates._install(b"pass"))
    assert not list(tmp_path.rglob("*.pyz"))

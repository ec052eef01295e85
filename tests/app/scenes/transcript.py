"""The transcript by itself, in the states that a conversation gets into."""

from __future__ import annotations

from dataclasses import replace

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QWidget

from app.pages.chat.transcript.message import MessageView
from app.pages.chat.transcript.model import Prefill, Shown, ShownFile, Stats
from app.pages.chat.transcript.view import Transcript
from app.widgets.basics import column
from tests.app.screenshots import Stage
from tests.app.windows import button, click

_STATS = Stats(
    first_token_s=0.94,
    tokens_per_s=24.8,
    n_reused=11904,
    n_prompt=12310,
    prefilled_on="spark",
    is_remote=True,
    tail_ms=2.0,
    saved_s=4.1,
    n_answer=412,
)
_ASKED = Shown(
    id="q",
    role="user",
    text="Summarise the attached log. What made the disk slow, and how do I find out sooner next time?",
    attachments=(
        ShownFile(name="kernel-2026-11-29.log", n_tokens=11904),
        ShownFile(name="notes.pdf", n_tokens=380),
    ),
)
_ANSWER = """The disk was slow because **its queue was full of small writes** from the journal; it is not failing.

## What the log says

1. From 02:14 on, `jbd2` waits for the commit of *ext4* for up to 8.2 s.
2. At the same time `fstrim` runs, which your drive answers slowly:
   - it discards 212 GB in one go,
   - and holds other commands back meanwhile.
3. Nothing tells of bad sectors; see [the drive's manual](https://example.org/manual).

| Time | Waiting | Commands a second | Cause |
|:--|--:|--:|:--|
| 02:13 | 4 ms | 1,840 | – |
| 02:14 | 8,200 ms | 12 | `fstrim` |
| 02:31 | 5 ms | 1,790 | – |

> A drive that is asked to discard much at once may stop answering for seconds. It is not broken.

To be told sooner, watch the time that a command waits:

```python
from pathlib import Path


def waiting_ms(device: str = "nvme0n1") -> float:
    \"\"\"How long a command waited on average since the computer started.\"\"\"
    fields = [int(one) for one in Path(f"/sys/block/{device}/stat").read_text().split()]
    n_commands, spent_ms = fields[0] + fields[4], fields[3] + fields[7]  # reads and writes, in ms
    return spent_ms / max(1, n_commands)
```

With $n$ commands in the queue and a rate of $\\lambda$ a second, Little's law gives $W = \\frac{n}{\\lambda}$, so

$$
W_{\\text{02:14}} = \\frac{98}{12\\,\\text{s}^{-1}} \\approx 8.2\\ \\text{s}
$$
"""
_REASONING = """The user wants a summary and a cause. The log has two threads: `jbd2` and `fstrim`.

- `jbd2` waits, which is a symptom.
- `fstrim` begins at the same second. That looks like the cause."""


def play(stage: Stage) -> None:
    window = QWidget()
    window.setObjectName("page")
    window.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
    window.setStyleSheet("#page { background: palette(window); }")
    transcript = Transcript()
    window.setLayout(column(transcript, margin=0))
    window.resize(1280, 800)
    window.show()
    answer = Shown(
        id="a", role="assistant", text=_ANSWER, reasoning=_REASONING, reasoning_s=8.0, stats=_STATS
    )

    transcript.show_all([_ASKED, answer])
    stage.shot("transcript-end", window)
    transcript.verticalScrollBar().setValue(0)
    stage.shot("transcript-start", window)

    transcript.show_all(
        [_ASKED, replace(answer, text=_ANSWER[:120], stats=None, is_live=True, reasoning_s=None)]
    )
    click(button(transcript, "Thoughts"))
    stage.shot("transcript-streaming", window)

    transcript.show_all([_ASKED, replace(answer, text="", stats=None, is_live=True)])
    stage.shot("transcript-thinking", window)

    waiting = replace(answer, text="", reasoning="", stats=None, is_live=True)
    transcript.show_all([_ASKED, waiting])
    prefill = Prefill(
        done=12300, arrived=10750, total=28800, tokens_per_s=1833, left_s=9, where="spark", is_remote=True
    )
    transcript.show_prefill("a", prefill)
    stage.shot("transcript-prefill-remote", window)
    transcript.show_prefill(
        "a",
        Prefill(
            done=4100,
            arrived=4100,
            total=28800,
            tokens_per_s=410,
            left_s=60,
            where="studio",
            note="spark stopped answering; it goes on here",
        ),
    )
    stage.shot("transcript-prefill-here", window)

    transcript.show_all(
        [
            Shown(id="s", role="system", text="You answer shortly, and say when you are not sure."),
            Shown(id="u1", role="user", text="Why is the sky blue?"),
            Shown(
                id="a1",
                role="assistant",
                text="Air scatters short waves more: by about $\\lambda^{-4}$, so blue 5 times as much as red.",
                stats=Stats(
                    first_token_s=0.2, tokens_per_s=31.2, prefilled_on="studio", n_reused=0, n_prompt=41
                ),
            ),
            Shown(id="u2", role="user", text="And the sunset?", branch=(2, 2)),
            Shown(
                id="a2",
                role="assistant",
                text="The light's way through the air is longer then, and the blue has been",
                note="stopped",
                branch=(2, 3),
                stats=_STATS,
            ),
        ]
    )
    second = transcript.message("u2")
    assert isinstance(second, MessageView)
    second.setFocus(Qt.FocusReason.TabFocusReason)
    stage.shot("transcript-stopped", window)

    transcript.replace(
        Shown(
            id="a2",
            role="assistant",
            text="The light's way through",
            note="The engine ended while it answered: not enough memory. Load a smaller model, or a shorter context.",
        )
    )
    click(button(second, "Edit"))
    stage.shot("transcript-editing", window)

    transcript.show_all([_ASKED, answer, replace(_ASKED, id="q2", attachments=()), replace(answer, id="a2")])
    transcript.verticalScrollBar().setValue(500)
    middle = transcript.message("a")
    assert isinstance(middle, MessageView)
    middle.select_all()
    stage.shot("transcript-selected", window)
    window.hide()
    window.deleteLater()

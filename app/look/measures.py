"""Sizes that the whole window shares, in device-independent pixels; those of text as they are at its usual size."""

from __future__ import annotations

# The grid is 4; distances are one of these.
TINY, SMALL, MEDIUM, LARGE, HUGE = 4, 8, 12, 16, 24

RADIUS_CARD = 8
RADIUS_CONTROL = 6
RADIUS_BUBBLE = 14

CAPTION_PX = 12
BODY_PX = 14
TITLE_PX = 16
HEADING_PX = 21

# Lines of an answer are no longer than people like to read.
ANSWER_WIDTH = 720

CONTROL_HEIGHT = 32
SCROLL_BAR = 10
ICON = 18

# Motion shows where something came from; longer would be waiting.
MOTION_MS = 150

# In points, from and to: what a system's own text has as long as nobody asked for another size.
_USUAL_POINTS = {"darwin": (13.0, 13.0), "win32": (9.0, 9.0)}
_USUAL_POINTS_ELSEWHERE = (9.0, 11.0)

# Beyond these a page would have no room for what it says.
MIN_TEXT_SCALE, MAX_TEXT_SCALE = 0.85, 1.5


def text_scale(points: float, platform: str) -> float:
    """How much larger than usual text is wanted, by the size of the system's own; 1 where that is not known."""
    smallest, largest = _USUAL_POINTS.get(platform, _USUAL_POINTS_ELSEWHERE)
    if points <= 0 or smallest <= points <= largest:
        return 1.0
    wanted = points / (largest if points > largest else smallest)
    return min(MAX_TEXT_SCALE, max(MIN_TEXT_SCALE, wanted))

"""Sizes that the whole window shares, in device-independent pixels."""

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
ICON = 18

# Motion shows where something came from; longer would be waiting.
MOTION_MS = 150

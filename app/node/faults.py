"""What can go wrong between the window and the node, as sentences a user can act on."""

from __future__ import annotations


class AppError(Exception):
    """Its text is for the user: what happened, and what to do."""


def begun(words: str) -> str:
    """What the node says, with a capital at its beginning; the name of a model or a file stays as it is there."""
    return words[:1].upper() + words[1:] if words.split(" ", 1)[0].isalpha() else words


def sentence(words: str) -> str:
    """What the node says of a fault, as a sentence; a name at its beginning stays as it is."""
    began = begun(words)
    return began if not began or began.endswith((".", "…", "!", "?")) else f"{began}."


class NodeGone(AppError):
    """No node answers: it ended, or none was started."""


class NodeRefused(AppError):
    """The node answered that it cannot; `kind` and `code` are its own words for why, `fields` what it said beside.

    `retry_after_s` is when it should be able to, None where it did not say.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        kind: str = "",
        code: str = "",
        fields: dict[str, object] | None = None,
        retry_after_s: float | None = None,
    ):
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.code = code
        self.fields = fields or {}
        self.retry_after_s = retry_after_s

"""Errors as OpenAI's API words them: the border between Baton's error tree and HTTP."""

from __future__ import annotations

from typing import Any

from engine.errors import BatonError, HostError, InvalidRequest, PromptTooLong, UserError
from engine.server.json import JSONResponse


class Refused(UserError):
    """A request that the server itself turns away, before it means anything to the engine."""

    def __init__(self, message: str, *, status: int, kind: str, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.retry_after_s = retry_after_s


class StillLoading(Refused):
    """The model that was asked for is not ready yet; `progress` is the share that is loaded."""

    def __init__(self, model: str, progress: float, retry_after_s: int = 1) -> None:
        super().__init__(
            f"{model} is being loaded, {progress:.0%} are done: try again in a moment",
            status=503,
            kind="unavailable_error",
            retry_after_s=retry_after_s,
        )
        self.progress = progress


class LoadedAnew(StillLoading):
    """The model that was asked for is there, and begins no answer before it has been loaded with other settings."""

    def __init__(self, model: str, n_answers: int, retry_after_s: int) -> None:
        super().__init__(model, 0.0, retry_after_s)
        running = "1 answer that runs has" if n_answers == 1 else f"{n_answers} answers that run have"
        self.args = (
            f"{model} is loaded anew, with other settings, as soon as {running} ended: try again in {retry_after_s} s",
        )


def loading() -> Refused:
    return Refused(
        "the model is still being loaded: try again in a moment", status=503, kind="unavailable_error"
    )


def status_of(error: BatonError) -> int:
    """The HTTP status of an error."""
    if isinstance(error, Refused):
        return error.status
    return 400 if isinstance(error, UserError) else 500


def error_body(error: BatonError) -> dict[str, Any]:
    """The `{"error": ...}` object; for a prompt that is too long with both counts, as llama-server has it."""
    body: dict[str, Any] = {"message": str(error), "type": "server_error", "param": None, "code": error.word}
    if isinstance(error, Refused):
        body |= {"type": error.kind}
        if isinstance(error, StillLoading):
            body |= {"code": "model_loading", "progress": error.progress}
    elif isinstance(error, PromptTooLong):
        body |= {
            "type": "exceed_context_size_error",
            "code": "context_length_exceeded",
            "n_prompt_tokens": error.n_prompt_tokens,
            "n_ctx": error.n_ctx,
        }
    elif isinstance(error, InvalidRequest):
        body |= {"type": "invalid_request_error", "param": error.param}
    elif isinstance(error, UserError):
        body |= {"type": "invalid_request_error"}
    return {"error": body}


def error_response(error: BatonError) -> JSONResponse:
    headers = {}
    if isinstance(error, Refused) and error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    return JSONResponse(error_body(error), status_code=status_of(error), headers=headers)


def unexpected() -> HostError:
    """What a client is told of a mistake of ours; the log has the rest."""
    return HostError("Baton made a mistake while answering: its log has the details")

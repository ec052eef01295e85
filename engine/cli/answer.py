"""One streamed answer of the endpoint, and the figures that belong to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from engine.node.endpoint import Endpoint


class Answer:
    """Asks for a chat completion; `texts` yields it as it comes, `report` gives its figures afterwards.

    A `body` with a `prompt` and no messages is a plain completion.
    """

    def __init__(self, endpoint: Endpoint, body: dict[str, Any], *, clock: Callable[[], float]) -> None:
        self._endpoint = endpoint
        self._body = {"stream_options": {"include_usage": True}, **body}
        self._clock = clock
        self._parts: list[str] = []
        self._ttft_s: float | None = None
        self._usage: dict[str, Any] = {}
        self._timings: dict[str, Any] = {}

    def texts(self) -> Iterator[str]:
        """The answer's text in pieces. Raises what the endpoint refuses with."""
        is_chat = "messages" in self._body
        asked_at = self._clock()
        for chunk in self._endpoint.stream(
            "/v1/chat/completions" if is_chat else "/v1/completions", self._body
        ):
            self._usage = _object(chunk.get("usage")) or self._usage
            self._timings = _object(chunk.get("timings")) or self._timings
            for choice in map(_object, chunk.get("choices") or ()):
                text = _object(choice.get("delta")).get("content") if is_chat else choice.get("text")
                if text:
                    if self._ttft_s is None:
                        self._ttft_s = self._clock() - asked_at
                    self._parts.append(text)
                    yield text

    def report(self) -> dict[str, Any]:
        """The figures of a finished answer; times in ms, `overlap` from 0 to 1. None where there is nothing to tell.

        `reason` is the code for where the prompt was prefilled, `detail` its sentence (docs/endpoint.md).
        """
        if "predicted_per_second" not in self._timings:
            raise self._endpoint.stranger("it sends no timings")
        handoff = self._timings.get("handoff") or {}
        return {
            "answer": "".join(self._parts),
            "prefill": handoff.get("prefill", "local"),
            "prompt_tokens": self._usage.get("prompt_tokens"),
            "handoff_bytes": handoff.get("bytes", 0),
            "overlap": handoff.get("overlap"),
            "tail_ms": handoff.get("tail_ms"),
            "ttft_ms": None if self._ttft_s is None else round(self._ttft_s * 1000, 1),
            "decode_tps": round(self._timings["predicted_per_second"], 1),
            "remote_tokens": handoff.get("remote_tokens", 0),
            "reason": handoff.get("reason"),
            "detail": handoff.get("detail"),
        }


def _object(value: Any) -> dict[str, Any]:
    """A JSON object as it is, anything else as an empty one."""
    return value if isinstance(value, dict) else {}


def telemetry_line(report: dict[str, Any]) -> str:
    """The figures of a report in one line; also why a prompt was not prefilled elsewhere."""
    where = f"prefill {report['prefill']}"
    if report["detail"] and report["prefill"] == "local":
        where += f" ({report['detail']})"
    parts = [where, f"{report['prompt_tokens']} prompt tokens"]
    if report["handoff_bytes"]:
        parts.append(f"{report['handoff_bytes'] / 1e6:.1f} MB moved")
    if report["tail_ms"] is not None:
        parts.append(f"tail {report['tail_ms']:.1f} ms")
    if report["ttft_ms"] is not None:
        parts.append(f"TTFT {report['ttft_ms']:.0f} ms")
    parts.append(f"{report['decode_tps']:.1f} tok/s")
    return "[" + ", ".join(parts) + "]"

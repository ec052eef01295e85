"""The same prompts answered twice, prefilled here and by the worker, and compared token for token.

Asks an endpoint as any client does, and prints nothing. Blocking: a prompt takes as long as it takes twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from engine.errors import HostError, UserError
from engine.node.endpoint import Endpoint

# One token, a few, and around the borders of a chunk of 512.
LENGTHS = (2, 33, 511, 512, 513, 514, 1030, 2100)

_N_ANSWER = 16

# How many likely tokens are looked at where two answers part.
_N_LIKELY = 5

# In natural logarithms of probabilities: two tokens this near to each other are as good as equal, and the rounding of
# 16-bit numbers decides between them.
_NEAR_TIE = 0.1

# Cut into tokens, and repeated until a prompt is long enough.
_TEXT = """A relay race is won in the exchange zone. The runner who arrives gives everything that is left, and the one
who waits has to be at full speed when the baton comes: looking back costs a tenth of a second, dropping it costs the
race. Teams therefore practise one movement more than any other, until nobody has to think of it. """


class SelfTest:
    """Of the engine that has that model, or of the one that is asked where none is named."""

    def __init__(self, endpoint: Endpoint, model: str = "") -> None:
        self._endpoint = endpoint
        self._model = {"model": model} if model else {}
        self._query = f"?model={quote(model)}" if model else ""
        self.rows: list[dict[str, Any]] = []

    def prompts(self, lengths: Sequence[int] = LENGTHS) -> list[list[int]]:
        """Prompts of those lengths, without those of the default that do not fit the context.

        Raises UserError for lengths that cannot be, or where there is no worker; HostError where it is away.
        """
        worker = self._endpoint.get(f"/worker{self._query}")
        if not worker["configured"]:
            raise UserError("this endpoint has no worker: start it with --peer to have something to test")
        if not worker["connected"]:
            raise HostError(f"the worker is not connected: {worker['note']}")
        if min(lengths) < 2:
            raise UserError("--lengths: 2 at least, as a prompt's last token is always computed here")
        room = min(slot["n_ctx"] for slot in self._slots()) - _N_ANSWER
        if lengths is not LENGTHS and max(lengths) > room:
            raise UserError(
                f"--lengths {max(lengths)}: the context has room for prompts of {room} tokens beside the answer"
            )
        tokens = self._endpoint.ask("/tokenize", {"content": _TEXT, **self._model})["tokens"]
        # Each begins in its own way, so that none finds another's cache.
        return [
            [
                tokens[(index * 7 + number) % len(tokens)] if index < 8 else tokens[index % len(tokens)]
                for index in range(n)
            ]
            for number, n in enumerate(lengths)
            if n <= room
        ]

    def compare(self, prompt: list[int]) -> dict[str, Any]:
        """One prompt both ways: a row of `rows`."""
        local, remote = (self._answer(prompt, way) for way in ("local", "remote"))
        handoff = remote["timings"]["handoff"]
        row: dict[str, Any] = {
            "prompt_tokens": len(prompt),
            "prefill": handoff["prefill"],
            "reason": handoff["reason"],
            "detail": handoff["detail"],
            "bytes": handoff["bytes"],
            "tail_ms": handoff["tail_ms"],
            "local_ms": local["timings"]["prompt_ms"],
            "remote_ms": remote["timings"]["prompt_ms"],
            "same": local["tokens"] == remote["tokens"],
            "diverges_at": None,
            "margin": None,
            "near_tie": False,
        }
        if not row["same"]:
            row |= _where_they_part(local, remote)
        self.rows.append(row)
        return row

    @property
    def passed(self) -> bool:
        """Whether the worker prefilled every prompt, and the answers are the same or part at a near tie."""
        return all(row["prefill"] == "remote" and (row["same"] or row["near_tie"]) for row in self.rows)

    def verdict(self) -> str:
        """What came of it, as a sentence."""
        n_local = sum(row["prefill"] != "remote" for row in self.rows)
        if n_local:
            return f"{n_local} of {len(self.rows)} prompts could not be prefilled by the worker"
        if not self.passed and self._by_int8():
            return "answers may part with --codec int8: start Baton without it to compare the two computers"
        if not self.passed:
            return (
                "the two computers do not compute the same: check that both run the same version, and look at their "
                "logs"
            )
        n_ties = sum(row["near_tie"] for row in self.rows)
        ties = f", {n_ties} of them but for a near tie" if n_ties else ""
        return f"{len(self.rows)} prompts gave the same answer either way{ties}"

    def _by_int8(self) -> bool:
        """Whether a slot's last K and V came in 8 bits, which alone may change an answer."""
        handoffs = [(slot["timeline"] or {}).get("handoff") for slot in self._slots()]
        return any(handoff["codec"] == "int8" for handoff in handoffs if handoff)

    def _slots(self) -> Any:
        return self._endpoint.get(f"/slots{self._query}")

    def _answer(self, prompt: list[int], prefill: str) -> dict[str, Any]:
        answer: dict[str, Any] = self._endpoint.ask(
            "/v1/completions",
            {
                **self._model,
                "prompt": prompt,
                "max_tokens": _N_ANSWER,
                "temperature": 0,
                "logprobs": _N_LIKELY,
                "return_tokens": True,
                "ignore_eos": True,
                "cache_prompt": False,
                "prefill": prefill,
            },
        )
        return answer


def _where_they_part(local: dict[str, Any], remote: dict[str, Any]) -> dict[str, Any]:
    """The place, by how much, and whether that is as good as equal; nothing where one answer is only longer."""
    pairs = zip(local["tokens"], remote["tokens"], strict=False)
    place = next((index for index, (a, b) in enumerate(pairs) if a != b), None)
    if place is None:
        return {}
    likely, other = (answer["choices"][0]["logprobs"] for answer in (local, remote))
    least = min(likely["top_logprobs"][place].values())
    margin = likely["token_logprobs"][place] - likely["top_logprobs"][place].get(
        other["tokens"][place], least
    )
    return {"diverges_at": place, "margin": margin, "near_tie": margin < _NEAR_TIE}

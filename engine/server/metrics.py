"""`GET /metrics`: the journal's sums in Prometheus' text format, collected when somebody asks.

Names follow vLLM's, with `baton_` before them. Labels hold codes only, so that their values are few; the one name of
the loaded model aside.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString
from starlette.requests import Request
from starlette.responses import Response

from engine.batching.request import FinishReason
from engine.batching.snapshot import LoopSnapshot
from engine.batching.totals import Histogram, Totals
from engine.server.backend import Backend
from engine.server.errors import loading

PREFIX = "baton_"

# Named from the start, so that a rate is known from the first of a kind on.
OUTCOMES = (*(reason.value for reason in FinishReason), "failed")


async def metrics(request: Request) -> Response:
    """In the format that the Accept header asks for: Prometheus' text, or OpenMetrics."""
    registry: CollectorRegistry | None = request.app.state.metrics
    if registry is None:
        raise loading()
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(registry), headers={"content-type": content_type})


def new_registry(backend: Backend) -> CollectorRegistry:
    """One for each engine, and none shared: what other libraries of this process count does not show."""
    registry = CollectorRegistry()
    registry.register(EngineCollector(backend))
    ProcessCollector(registry=registry)
    return registry


class EngineCollector(Collector):
    """Reads the journal and the slots of one engine."""

    def __init__(self, backend: Backend) -> None:
        self._engine = backend.engine
        self._model = backend.model.model_id

    def collect(self) -> Iterator[Metric]:
        totals = self._engine.journal.totals
        yield _gauge("model_info", "The loaded model.", 1, model=self._model)
        yield from _present(self._engine.snapshot())
        yield from _tokens(totals)
        yield from _requests(totals)
        yield from _handoffs(totals)


def _present(snapshot: LoopSnapshot) -> Iterator[Metric]:
    slots = snapshot.slots
    n_positions = sum(slot.n_ctx for slot in slots)
    n_held = sum(slot.n_cached for slot in slots)
    link = snapshot.worker
    yield _gauge("slots", "Slots that there are.", len(slots))
    yield _gauge(
        "num_requests_running", "Requests in slots.", sum(slot.request_id is not None for slot in slots)
    )
    yield _gauge("num_requests_waiting", "Requests that wait for a slot.", snapshot.n_queued)
    yield _gauge("slots_busy", "Slots that cannot be taken.", sum(slot.state != "idle" for slot in slots))
    yield _gauge("kv_cache_tokens", "Tokens held in the cache of all slots.", n_held)
    yield _gauge(
        "kv_cache_usage_ratio", "Share of the cache that holds tokens, 0 to 1.", n_held / max(1, n_positions)
    )
    if (kept := snapshot.prefixes) is not None:
        yield _gauge("prefix_cache_bytes", "Bytes of prefixes kept beside the slots.", kept.n_bytes)
        yield _gauge("prefix_cache_limit_bytes", "Bytes that may be kept so.", kept.budget_bytes)
        yield _gauge("prefix_cache_tokens", "Tokens of prefixes kept beside the slots.", kept.n_tokens)
    yield _gauge("worker_configured", "1 where a worker is configured.", link is not None)
    yield _gauge("worker_connected", "1 while the worker is connected.", link is not None and link.ready)


def _tokens(totals: Totals) -> Iterator[Metric]:
    prompt = _Counted("prompt_tokens", "Prompt tokens of requests that are over, by their source.", "source")
    prompt.add(totals.cached_tokens, "cached")
    prompt.add(totals.local_tokens, "local")
    prompt.add(totals.remote_tokens, "remote")
    yield prompt.family
    yield _sum("generation_tokens", "Tokens generated.", totals.generated_tokens)
    yield _histogram(
        "inter_token_latency_seconds", "From a request's token to its next.", totals.between_tokens_s
    )


def _requests(totals: Totals) -> Iterator[Metric]:
    outcomes = _Counted("requests", "Requests that are over, by how they ended.", "outcome")
    for outcome in OUTCOMES:
        outcomes.add(totals.outcomes[outcome], outcome)
    yield outcomes.family
    prefills = _Counted("prefills", "Where prompts were to be prefilled, and why.", "prefill", "reason")
    for (prefill, reason), count in totals.routes.copy().items():
        prefills.add(count, prefill, reason)
    yield prefills.family
    yield _histogram("request_queue_time_seconds", "From a request's coming to its slot.", totals.queue_s)
    yield _histogram(
        "request_prefill_time_seconds", "From a request's slot to its first token.", totals.prefill_s
    )
    yield _histogram(
        "time_to_first_token_seconds", "From a request's coming to its first token.", totals.first_token_s
    )
    yield _histogram("e2e_request_latency_seconds", "From a request's coming to its end.", totals.request_s)


def _handoffs(totals: Totals) -> Iterator[Metric]:
    fallbacks = _Counted("fallbacks", "Handoffs that failed and were gone on with here.", "reason")
    for reason, count in totals.fallbacks.copy().items():
        fallbacks.add(count, reason)
    yield fallbacks.family
    downs = _Counted("link_downs", "Times that the link to the worker was lost.", "reason")
    for reason, count in totals.link_downs.copy().items():
        downs.add(count, reason)
    yield downs.family
    yield _sum("handoff_bytes", "Bytes of K and V that came whole from the worker.", totals.handoff_bytes)
    yield _sum("handoff_wire_bytes", "Bytes that came over the link for them.", totals.wire_bytes)
    yield _sum(
        "handoff_receive_seconds",
        "From handoffs' first frames that were whole to their last.",
        totals.receive_s,
    )
    yield _sum("handoff_hidden_seconds", "Of those, while the worker was still computing.", totals.hidden_s)
    yield _histogram(
        "handoff_tail_seconds",
        "From the end of the worker's computing to the last acknowledgement.",
        totals.tail_s,
    )
    yield _histogram(
        "handoff_overlap_ratio",
        "Share of a handoff's bytes that had arrived when the worker's computing ended.",
        totals.overlap,
    )
    yield _gauge(
        "link_goodput_bytes_per_second", "Of the last handoff, while its bytes came in.", totals.goodput
    )
    yield _gauge("link_goodput_best_bytes_per_second", "The highest of all handoffs.", totals.best_goodput)


class _Counted:
    """A counter in the making."""

    def __init__(self, name: str, text: str, *labels: str) -> None:
        self.family = CounterMetricFamily(PREFIX + name, text, labels=labels)

    def add(self, count: int, *values: str) -> None:
        self.family.add_metric(values, count)


def _sum(name: str, text: str, total: float) -> Metric:
    """A counter without labels."""
    return CounterMetricFamily(PREFIX + name, text, value=total)


def _gauge(name: str, text: str, value: float, **labels: str) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, text, labels=list(labels))
    family.add_metric(list(labels.values()), float(value))
    return family


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    family = HistogramMetricFamily(PREFIX + name, text)
    bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
    cumulative = accumulate(histogram.counts())
    family.add_metric([], list(zip(bounds, cumulative, strict=True)), histogram.sum)
    return family

"""What this computer says of itself, to its users and to paired computers: device, memory, and how it runs a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import psutil
from msgspec import Meta

from engine.errors import ModelNotFound, UserError
from engine.gguf.digest import digest_of_parts
from engine.node.agreeing.measure import Measurement, Measurements
from engine.node.agreeing.roles import Report
from engine.node.models.model_folder import LocalModel
from engine.node.models.shelf import Shelf
from engine.node.peering.offers import Method, Offers
from engine.node.peering.peer_link import PeerLink

METHOD = "roles.report"


class About(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model that a report is wanted of, and how it would be served."""

    digest: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    n_ctx: Annotated[int, Meta(ge=1, le=1 << 24)]
    n_slots: Annotated[int, Meta(ge=1, le=1 << 12)]


class Reports:
    """Reports of this computer; `link_bytes_per_s(node_id)` is what was measured of the link to another one."""

    def __init__(
        self,
        node_id: str,
        name: str,
        shelf: Shelf,
        measurements: Measurements,
        *,
        link_bytes_per_s: Callable[[str], float | None],
    ) -> None:
        self._node_id = node_id
        self.name = name
        self._shelf = shelf
        self._measurements = measurements
        self._link_bytes_per_s = link_bytes_per_s
        self._measured: dict[str, Measurement] = {}

    def offer_methods(self, offers: Offers) -> None:
        offers.calls[METHOD] = Method(self._answer, About)

    async def measure(self, model: LocalModel) -> Measurement:
        """Have reports of this model say how fast it runs here: measured now, if it never was.

        Raises UserError for a model that cannot be run, ProcessFailed or HostError.
        """
        if model.problem:
            raise UserError(f"{model.model_id} cannot be run: {model.problem}")
        digest = digest_of_parts(await self._shelf.digests(model))
        self._measured[digest] = await self._measurements.measure(model.path, digest)
        return self._measured[digest]

    def of(self, about: About, peer_id: str) -> Report:
        """This computer's report to that peer."""
        model = self._model(about.digest)
        return Report(
            node_id=self._node_id,
            name=self.name,
            memory_bytes=psutil.virtual_memory().total,
            has_model=model is not None,
            needed_bytes=model.needed_bytes(n_ctx=about.n_ctx, n_slots=about.n_slots) if model else 0,
            kv_bytes_per_token=model.kv_bytes_per_token() if model else 0,
            measurement=self._measurement(about.digest),
            link_bytes_per_s=self._link_bytes_per_s(peer_id),
        )

    def gpu_bytes(self) -> int:
        """The memory of the device where models are computed, as any measurement has it, 0 where none has."""
        return max((found.device_bytes for found in self._all_measured().values()), default=0)

    def snapshot(self) -> dict[str, Any]:
        memory = psutil.virtual_memory()
        measured = self._all_measured()
        devices = {found.device_name or found.device for found in measured.values()}
        return {
            "device": ", ".join(sorted(devices)),
            "memory": {
                "total_bytes": memory.total,
                "free_bytes": memory.available,
                "gpu_bytes": self.gpu_bytes(),
            },
            "measured": {model_id: msgspec.to_builtins(found) for model_id, found in measured.items()},
        }

    def _all_measured(self) -> dict[str, Measurement]:
        return {
            model.model_id: found
            for model in self._shelf.models
            if model.digest is not None and (found := self._measurement(model.digest)) is not None
        }

    async def _answer(self, link: PeerLink, about: About) -> Report:
        return self.of(about, link.peer.node_id)

    def _model(self, digest: str) -> LocalModel | None:
        try:
            return self._shelf.find(digest)
        except ModelNotFound:
            return None

    def _measurement(self, digest: str) -> Measurement | None:
        """Looked up on the disk once."""
        if digest not in self._measured and (known := self._measurements.known(digest)) is not None:
            self._measured[digest] = known
        return self._measured.get(digest)

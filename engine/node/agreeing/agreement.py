"""Who prefills and who decodes, model by model, with each paired computer that is there: agreed, and kept up to date.

Both computers send each other their reports and come to the same roles by themselves (`roles`). What both have and this
one has not measured yet is measured when there is time for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from engine.errors import BatonError, PeerLost
from engine.node.agreeing.measure import Measurement
from engine.node.agreeing.reports import METHOD as REPORT
from engine.node.agreeing.reports import About, Reports
from engine.node.agreeing.roles import Report, Roles, agree
from engine.node.agreeing.wishes import Wishes
from engine.node.models.model_folder import LocalModel
from engine.node.models.shelf import Shelf
from engine.node.peering.offers import Method, Offers
from engine.node.peering.peer_link import PeerLink

log = logging.getLogger(__name__)

_CHANGED = "roles.changed"

# What could not be measured because the computer was busy is tried again so often.
_RETRY_S = 20.0


class Agreement:
    """The roles agreed on; `on_change` is called when they have changed."""

    def __init__(
        self,
        node_id: str,
        shelf: Shelf,
        reports: Reports,
        wishes: Wishes,
        *,
        links: Callable[[], Iterable[PeerLink]],
        n_ctx: int,
        n_slots: int,
        has_time_for: Callable[[LocalModel], bool],
        on_change: Callable[[], None],
    ) -> None:
        """`has_time_for(model)`: whether nothing would suffer if that model were measured now."""
        self._node_id = node_id
        self._shelf = shelf
        self._reports = reports
        self._wishes = wishes
        self._links = links
        self._n_ctx = n_ctx
        self._n_slots = n_slots
        self._has_time_for = has_time_for
        self._on_change = on_change
        self._roles: dict[str, dict[str, Roles]] = {}
        self._unmeasured: dict[str, LocalModel] = {}
        self._failures: dict[str, str] = {}
        self._woken = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self._measuring: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._keeping = asyncio.create_task(self._keep(), name="roles")

    async def close(self) -> None:
        tasks = [task for task in (self._keeping, self._measuring) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def offer_methods(self, offers: Offers) -> None:
        self._reports.offer_methods(offers)
        self._wishes.offer_methods(offers)
        offers.news[_CHANGED] = Method(lambda link, params: self._woken.set(), None)

    def greet(self, link: PeerLink) -> None:
        """A paired computer has come."""
        self._wishes.greet(link)
        self._woken.set()

    def look_again(self) -> None:
        """Links have come or gone."""
        self._woken.set()

    def changed(self) -> None:
        """Something that this computer's reports tell of has changed, or the wish."""
        self._woken.set()
        for link in self._links():
            link.tell(_CHANGED)
        self._on_change()

    def set_size(self, *, n_ctx: int, n_slots: int) -> None:
        """Engines are started with other room from now on."""
        self._n_ctx, self._n_slots = n_ctx, n_slots
        self._woken.set()

    async def measure(self, model: LocalModel) -> Measurement:
        """As `Reports.measure`; roles follow."""
        found = await self._reports.measure(model)
        self._failures.pop(model.digest or "", None)
        self.changed()
        return found

    def with_peer(self, node_id: str, model_id: str | None) -> Roles | None:
        """What was agreed with that computer for the model, by its id here; of any model where none is named."""
        agreed = self._roles.get(node_id, {})
        return agreed.get(model_id) if model_id is not None else next(iter(agreed.values()), None)

    def snapshot(self) -> dict[str, Any]:
        return {
            "wishes": self._wishes.snapshot(),
            "agreed": [
                {"peer": node_id, "model": model_id, **roles.snapshot()}
                for node_id, agreed in self._roles.items()
                for model_id, roles in agreed.items()
            ],
            "not_measured": {
                model.model_id: self._failures[model.digest]
                for model in self._shelf.models
                if model.digest is not None and model.digest in self._failures
            },
            **self._reports.snapshot(),
        }

    async def _keep(self) -> None:
        while True:
            self._woken.clear()
            await self._agree_with_all()
            self._measure_one()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RETRY_S if self._unmeasured else None):
                    await self._woken.wait()

    def _measure_one(self) -> None:
        """Roles are agreed on meanwhile, too: that may take minutes."""
        if self._measuring is None or self._measuring.done():
            model = next(filter(self._has_time_for, self._unmeasured.values()), None)
            if model is not None:
                self._measuring = asyncio.create_task(self._try_to_measure(model), name="measure")

    async def _agree_with_all(self) -> None:
        self._unmeasured = {}
        links = list(self._links())
        agreed = await asyncio.gather(*map(self._agree_with, links))
        found = {link.peer.node_id: roles for link, roles in zip(links, agreed, strict=True)}
        if found != self._roles:
            self._roles = found
            self._on_change()

    async def _agree_with(self, link: PeerLink) -> dict[str, Roles]:
        """Of each model that both have. One that the other computer says nothing of keeps what was agreed before.

        Who does not answer at all is not asked of the next one.
        """
        agreed: dict[str, Roles] = {}
        is_silent = False
        for model in self._shelf.models:
            if model.digest is None or model.problem:
                continue
            about = About(digest=model.digest, n_ctx=self._n_ctx, n_slots=self._n_slots)
            theirs: Report | None = None
            if not is_silent:
                try:
                    theirs = await link.call(REPORT, about, gives=Report)
                except BatonError as error:
                    log.info("%s does not say how it runs %s: %s", link.peer.name, model.model_id, error)
                    is_silent = isinstance(error, PeerLost)
            if theirs is None:
                if (known := self.with_peer(link.peer.node_id, model.model_id)) is not None:
                    agreed[model.model_id] = known
                continue
            if not theirs.has_model:
                continue
            ours = self._reports.of(about, link.peer.node_id)
            # whoever speaks for himself is known by his certificate, and not by what he says
            theirs = msgspec.structs.replace(theirs, node_id=link.peer.node_id)
            agreed[model.model_id] = agree(ours, theirs, self._wishes.with_peer(link.peer.node_id))
            if ours.measurement is None and model.digest not in self._failures:
                self._unmeasured[model.digest] = model
        return agreed

    async def _try_to_measure(self, model: LocalModel) -> None:
        try:
            await self.measure(model)
        except BatonError as error:
            log.warning("%s", error)
            self._failures[model.digest or ""] = str(error)
            self.changed()

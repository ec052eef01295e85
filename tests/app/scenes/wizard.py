"""The first run, step by step, each in the states that a user may meet."""

from __future__ import annotations

from typing import Any

import msgspec

from app.wizard.course import Step
from app.wizard.page import WizardPage
from app.wizard.step import Target
from app.wizard.steps.cable import CableStep
from app.wizard.steps.find import FindStep
from app.wizard.steps.model import ModelStep
from app.wizard.steps.pair import PairStep
from app.wizard.steps.permission import PermissionStep
from engine.link.findings import findings
from engine.link.permission import Observed, decide
from tests.app.screenshots import Stage
from tests.app.staged_node import catalogue, library
from tests.app.windows import button, click, texts, wait
from tests.engine.link.reports import report

SPARK = {
    "node_id": "c" * 32,
    "instance": "1",
    "name": "attic",
    "version": "0.9.0",
    "addresses": ["10.71.17.2:7119"],
    "pairing_addresses": [],
    "by": ["multicast"],
    "has_twin": False,
}
PC = {
    "system": "linux",
    "processor": "AMD Ryzen 9 7950X",
    "n_cores": 16,
    "memory_bytes": 64 << 30,
    "gpu": "NVIDIA GeForce RTX 4090",
    "shares_memory": False,
    "gpu_limit_bytes": 24 << 30,
    "raise_gpu_limit": "",
}


def play(stage: Stage) -> None:
    stage.app.window.go("setup")
    page = stage.app.window.page("setup")
    assert isinstance(page, WizardPage)
    scene = _Scene(stage, page)
    scene.of_two()
    scene.alone()


class _Scene:
    def __init__(self, stage: Stage, page: WizardPage) -> None:
        self.stage, self.page, self.app = stage, page, stage.app
        wait(lambda: page.step is not None)

    def tell(self, **parts: Any) -> None:
        self.app.tell(**parts)

    def view(self) -> Any:
        step = self.page.step
        assert step is not None
        return self.page._views[step]

    def shot(self, name: str) -> None:
        self.stage.shot(f"wizard-{name}")

    def of_two(self) -> None:
        """Paired already, as the stage has it."""
        self.page.go_to(Step.WELCOME)
        self.shot("1-welcome-mac")
        self.tell(computer=PC, roles={**self.app.parts["roles"], "memory": {"free_bytes": 51 << 30}})
        self.shot("1-welcome")
        self.tell()
        self.permission()
        self.cable()
        told = library()
        self.app.staged.answers["GET", "/models"] = {
            "here": {**told["here"], "models": [told["here"]["models"][1]]},
            "peers": [{**told["peers"][0], "models": told["peers"][0]["models"][:2]}],
        }
        self.app.staged.answers["GET", "/models/catalogue"] = catalogue()
        self.page.go_to(Step.MODEL)
        model = self.view()
        assert isinstance(model, ModelStep)
        wait(lambda: model._cards)
        self.shot("6-model")
        for card in model._cards.values():
            card.begin()
            card.show_progress(62_000_000, 98_362_432)
        self.shot("6-model-busy")
        for card in model._cards.values():
            card.show_fault(
                "The disk is full: 491 MB are needed. Make room, then try again: what was fetched is kept."
            )
        self.shot("6-model-broken")
        self.page.go_to(Step.ROLES)
        wait(lambda: self.app.state.part("roles", {}).get("agreed"))
        self.shot("7-roles")
        self.page.go_to(Step.READY)
        self.shot("8-ready")

    def permission(self) -> None:
        self.tell(permission=_told(host="10.0.0.2", connect_errno=65, tool_reached=True))
        self.page.go_to(Step.PERMISSION)
        self.shot("2-permission")
        view = self.view()
        assert isinstance(view, PermissionStep)
        view._has_asked = True
        view.refresh()
        self.page.refresh()
        self.shot("2-permission-asking")
        self.tell(permission=_told(host="10.0.0.2", connect_errno=65, tool_reached=True, asked_for_s=60.0))
        self.shot("2-permission-denied")
        self.tell(permission=_told(host="10.0.0.2", connect_errno=0))
        self.shot("2-permission-allowed")
        self.tell(permission={"state": "not_applicable", "sentence": "", "steps": [], "settings_url": None})

    def cable(self) -> None:
        self.app.staged.streams["/link/probe"] = [{"part": "round trips"}]
        self.page.go_to(Step.CABLE)
        view = self.view()
        assert isinstance(view, CableStep)
        wait(lambda: "round trips" in texts(view))
        self.shot("5-cable-measuring")
        view._probe.cancel()
        view._over(None)
        good = report()
        bad = report(
            to_peer={"path_mtu": 1500}, limits_here={"receive_granted": 212_992, "receive_auto_max": 6 << 20}
        )
        for name, each in (("good", good), ("findings", bad)):
            told = msgspec.to_builtins(msgspec.structs.replace(each, findings=findings(each)))
            view._show_report(told)
            view.refresh()
            self.shot(f"5-cable-{name}")
        view._fix()
        dialog = view._dialog
        dialog._job.cancel()
        dialog._show_plan({"steps": []})
        self.stage.shot("wizard-5-cable-plan-none", dialog)
        dialog._show_plan(
            {
                "steps": ["ip link set dev eth1 mtu 9000", "write 33554432 to /proc/sys/net/core/rmem_max"],
                "plan": {"notes": ["it lasts until the computer restarts; run this again then"]},
                "blocked": False,
            }
        )
        self.stage.shot("wizard-5-cable-plan", dialog)
        dialog.reject()

    def alone(self) -> None:
        """Unpaired again: finding, setting up and pairing."""
        self.app.parts["peers"], self.app.parts["joins"] = [], []
        self.app.parts["roles"] = {**self.app.parts["roles"], "agreed": []}
        self.app.staged.streams["/setup/line"] = [
            {
                "line": "curl -fsS http://10.77.3.1:7121/3f9a61c2 -o baton.zip && echo '8c1f04d2e7a95b36  baton.zip' | "
                "sha256sum -c && python3 baton.zip --pair-with studio",
                "works_for_s": 600.0,
            }
        ]
        offer = {"code": "4821-7730", "expires_in_s": 272.0, "addresses": ["10.77.3.1:7120"]}
        self.app.staged.streams["/pairing/offer"] = [offer]
        self.tell()
        self.page.go_to(Step.FIND)
        view = self.view()
        assert isinstance(view, FindStep)
        discovery = self.app.parts["discovery"]
        self.shot("3-find-empty")
        showing = {**SPARK, "name": "spark", "node_id": "d" * 32, "pairing_addresses": ["10.71.17.3:7120"]}
        nobody = {**SPARK, "node_id": None, "name": "", "version": None, "addresses": ["10.71.17.9:7119"]}
        self.tell(
            discovery={
                **discovery,
                "found": [SPARK, showing, nobody],
                "manual": nobody["addresses"],
            }
        )
        self.shot("3-find")
        click(button(self.app.window, "Baton is not on it yet"))
        wait(lambda: view._install._line.toPlainText())
        view._install._clock.stop()
        self.shot("3-install")
        self.tell(discovery={**discovery, "found": []})
        self.page.target = Target(name="attic", node_id=SPARK["node_id"])
        self.page.go_to(Step.PAIR)
        pairing = self.view()
        assert isinstance(pairing, PairStep)
        wait(lambda: pairing._code.code)
        pairing._code._ring._clock.stop()
        self.shot("4-pair-show")
        pairing._show_fault("expired", "")
        self.shot("4-pair-expired")
        click(button(self.app.window, "Way: Type the code from there"))
        self.shot("4-pair-type")
        pairing._show_fault("wrong_code", "")
        self.shot("4-pair-wrong")
        pairing._on_paired(
            {
                "paired": {
                    "node_id": "d" * 32,
                    "name": "spark",
                    "fingerprint": "9f3a61c27d5e08b4" * 4,
                    "platform": "Linux aarch64",
                    "note": "spark has Baton 0.8.0",
                }
            }
        )
        self.shot("4-paired")
        self.app.lose_node()
        self.shot("gone")


def _told(**observed: Any) -> dict[str, Any]:
    verdict = decide(Observed(is_macos=True, is_direct=True, **observed))
    return {
        "state": verdict.state.value,
        "sentence": verdict.sentence,
        "steps": list(verdict.steps),
        "settings_url": verdict.settings_url,
    }

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
from tests.app.screenshots import Stage, pair
from tests.app.windows import button, click, wait
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
MAC = {
    "system": "darwin",
    "processor": "Apple M2 Ultra",
    "n_cores": 24,
    "memory_bytes": 192 << 30,
    "gpu": "Apple M2 Ultra",
    "shares_memory": True,
    "gpu_limit_bytes": 144 << 30,
    "raise_gpu_limit": f"sudo sysctl iogpu.wired_limit_mb={168 << 10}",
}


def play(stage: Stage) -> None:
    stage.app.window.go("setup")
    page = stage.app.window.page("setup")
    assert isinstance(page, WizardPage)
    scene = _Scene(stage, page)
    scene.of_two()
    scene.alone()
    pair(stage.app, stage.spark)
    page.put_off()


class _Scene:
    def __init__(self, stage: Stage, page: WizardPage) -> None:
        self.stage, self.page, self.app = stage, page, stage.app
        wait(lambda: page.step is not None)

    def tell(self, **parts: Any) -> None:
        """As if the node had said it: what this computer is not, and has not."""
        self.app.state._hear(("changed", parts))

    def view(self) -> Any:
        step = self.page.step
        assert step is not None
        return self.page._views[step]

    def shot(self, name: str) -> None:
        self.stage.shot(f"wizard-{name}")

    def of_two(self) -> None:
        """Paired already, as the stage has it."""
        real = self.app.state.part("computer")
        self.page.go_to(Step.WELCOME)
        self.shot("1-welcome")
        self.tell(computer=MAC)
        self.shot("1-welcome-mac")
        self.tell(computer=real)
        self.permission()
        self.cable()
        self.page.go_to(Step.MODEL)
        model = self.view()
        assert isinstance(model, ModelStep)
        wait(lambda: model._cards)
        self.shot("6-model")
        for card in model._cards.values():
            card.begin()
            card.show_progress(312_000_000, 491_400_064)
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
        self.page.go_to(Step.CABLE)
        view = self.view()
        assert isinstance(view, CableStep)
        self.shot("5-cable-measuring")
        wait(lambda: view._report is not None and not view._is_probing)
        self.shot("5-cable-loopback")
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
        wait(lambda: "Looking" not in dialog._sentence.text())
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
        self.app.bridge.run(self.app.client.delete("/peers/spark"))
        wait(lambda: not self.app.state.part("peers"))
        self.page.go_to(Step.FIND)
        view = self.view()
        assert isinstance(view, FindStep)
        # Who else is on this network is no part of the picture.
        self.app.state.close()
        discovery = self.app.state.part("discovery", {})
        self.tell(discovery={**discovery, "found": []})
        self.shot("3-find-empty")
        showing = {**SPARK, "name": "spark", "node_id": "d" * 32, "pairing_addresses": ["10.71.17.3:7120"]}
        self.tell(
            discovery={
                **discovery,
                "found": [SPARK, showing, {**SPARK, "node_id": None, "name": "", "version": None}],
            }
        )
        self.shot("3-find")
        click(button(self.app.window, "Baton is not on it yet"))
        wait(lambda: view._install._line.toPlainText() or "Making" not in view._install._state.text())
        self.shot("3-install")
        self.tell(discovery={**discovery, "found": []})
        self.page.target = Target(name="attic", node_id=SPARK["node_id"])
        self.page.go_to(Step.PAIR)
        pairing = self.view()
        assert isinstance(pairing, PairStep)
        wait(lambda: pairing._code.code)
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
        self.app.state.begin(start=False)


def _told(**observed: Any) -> dict[str, Any]:
    verdict = decide(Observed(is_macos=True, is_direct=True, **observed))
    return {
        "state": verdict.state.value,
        "sentence": verdict.sentence,
        "steps": list(verdict.steps),
        "settings_url": verdict.settings_url,
    }

"""Windows without a screen, and real nodes for them."""

from __future__ import annotations

import os

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtWidgets import QApplication

from app.context import Context
from app.look.look import Look
from engine.node.models import catalogue
from engine.paths import models_dir
from tests.app.windows import Opened, opened
from tests.engine.node.nodes import NodeProcess

STARTER = "smollm2-135m"


@pytest.fixture(scope="session")
def qapp_cls() -> type[QApplication]:
    return QApplication


@pytest.fixture(autouse=True)
def look(qapp: QApplication) -> Look:
    made = qapp.property("look")
    return made if isinstance(made, Look) else Look(qapp)


@pytest.fixture(scope="session")
def models() -> Path:
    """The library that has the starter model."""
    file = models_dir() / catalogue.find_model(STARTER).file
    if not file.exists():
        pytest.skip(f"needs the starter model: baton models get {STARTER}")
    return models_dir()


@pytest.fixture
def node(tmp_path: Path, models: Path) -> Iterator[NodeProcess]:
    """A node of this test's own that has the starter model, and is paired with nobody."""
    with NodeProcess(tmp_path, "studio", "--port", "0", "--node-port", "0", models=models) as node:
        yield node


@pytest.fixture(scope="session")
def _lasting_node(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("lasting")
    with NodeProcess(folder, "studio", "--port", "0", "--node-port", "0", models=models) as node:
        yield node


@pytest.fixture
def lasting_node(_lasting_node: NodeProcess) -> NodeProcess:
    """A node like `node`, but one for all tests that change nothing of what it keeps.

    It runs, though a test before may have ended it; models may be loaded.
    """
    if _lasting_node.process is None or _lasting_node.process.poll() is not None:
        _lasting_node.end()
        _lasting_node.start()
    return _lasting_node


@pytest.fixture
def app(node: NodeProcess, tmp_path: Path) -> Iterator[Opened]:
    """A window of that node, on its first page."""
    with opened(node, tmp_path / "window") as app:
        yield app


@pytest.fixture
def context(app: Opened) -> Context:
    return app.context

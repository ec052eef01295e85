"""The page Models of a real node, clicked and typed as a user would, with a small hub on this computer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QMimeData, QPointF, Qt, QUrl
from PySide6.QtGui import QDropEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QDialog

from app.pages.models.get import _RepositoryRow
from app.pages.models.page import ModelsPage
from app.pages.models.rows import State
from tests.app.conftest import STARTER
from tests.app.windows import Opened, button, click, opened, pair, texts, wait
from tests.engine.node.models.hub_at_hand import BLOCK_BYTES, HubAtHand, Repository, hub_at_hand
from tests.engine.node.models.models_at_hand import write_model
from tests.engine.node.nodes import NodeProcess


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubAtHand]:
    content = write_model(tmp_path / "on the hub", n_bytes=8 * BLOCK_BYTES).read_bytes()
    repositories = {
        "some/Tiny-GGUF": Repository(files={"Tiny-F32.gguf": content}),
        "meta/Closed-GGUF": Repository(files={"Closed-F32.gguf": content}, gated=True),
        "odd/Mamba-GGUF": Repository(files={"Mamba-F32.gguf": content}, architecture="mamba2"),
    }
    with hub_at_hand(repositories) as hub:
        yield hub


@pytest.fixture
def node(tmp_path: Path, models: Path, hub: HubAtHand) -> Iterator[NodeProcess]:
    """A node with a library of its own, in which the starter model is linked."""
    library = tmp_path / "library"
    library.mkdir()
    (starter,) = [file for file in models.glob("*.gguf") if file.name.startswith("SmolLM2-135M")]
    (library / starter.name).symlink_to(starter)
    made = NodeProcess(tmp_path, "studio", "--port", "0", "--node-port", "0", models=library)
    made.environment["HF_ENDPOINT"] = hub.url
    with made as node:
        yield node


@pytest.fixture
def app(node: NodeProcess, tmp_path: Path) -> Iterator[Opened]:
    with opened(node, tmp_path / "window") as app:
        yield app


@pytest.fixture
def page(app: Opened) -> ModelsPage:
    return library_of(app)


def library_of(app: Opened) -> ModelsPage:
    page = app.page("models")
    assert isinstance(page, ModelsPage)
    wait(lambda: (STARTER, True) in page.library.rows)
    return page


def test_a_model_is_loaded_looked_into_and_unloaded(page: ModelsPage) -> None:
    row = page.library.rows[STARTER, True]
    assert "llama · 135M" in row.accessibleName() and "Fits here" in texts(row)
    click(button(row, f"Load {STARTER}"))
    wait(lambda: row.model.state is State.LOADED)
    assert "Ready to answer" in texts(row)
    click(row)
    wait(lambda: "SHA-256" in texts(page.library.panel))
    told = texts(page.library.panel)
    assert all(words in told for words in ("30", "9 over 3", "8,192 tokens", "Q4_1", "cache, 4 slots"))
    QTest.keyClick(page.library.panel, Qt.Key.Key_Escape)
    assert not page.library.panel.isVisible()
    # one that answers is asked about first
    answering = [{**one, "active": 1} for one in page.context.state.part("engines")]
    page.context.state._hear(("changed", {"engines": answering}))
    click(button(row, f"Unload {STARTER}"))
    click(button(dialog(), "Keep it"))
    assert row.model.state is State.LOADED
    click(button(row, f"Unload {STARTER}"))
    click(button(dialog(), "Unload it"))
    wait(lambda: row.model.state is State.IDLE)


def test_a_model_of_the_hub_is_found_got_paused_and_gone_on_with(
    app: Opened, page: ModelsPage, hub: HubAtHand
) -> None:
    hub.stop_at = 2 * BLOCK_BYTES
    click(button(app.window, "Get models"))
    QTest.keyClicks(page.get.field, "tiny")
    QTest.keyClick(page.get.field, Qt.Key.Key_Return)
    wait(lambda: page.get.findChildren(_RepositoryRow))
    QTest.keyClick(page.get.findChildren(_RepositoryRow)[0], Qt.Key.Key_Return)
    wait(lambda: "Tiny-F32" in texts(page.get))
    click(button(page.get, "Get Tiny-F32"))
    wait(lambda: " kB of" in texts(page.transits))
    click(button(page.transits, "Pause Tiny-F32"))
    wait(lambda: "Paused at" in texts(page.transits))
    assert ("Tiny-F32", True) not in page.library.rows
    hub.go_on.set()
    click(button(page.transits, "Resume Tiny-F32"))
    wait(lambda: ("Tiny-F32", True) in page.library.rows)
    wait(lambda: not page.transits.isVisible())
    assert "Here Tiny-F32" in [button(page.get, "Here Tiny-F32").accessibleName()]


def test_a_fetch_that_is_thrown_away_leaves_nothing(app: Opened, page: ModelsPage, hub: HubAtHand) -> None:
    hub.stop_at = BLOCK_BYTES
    page.fetch("some/Tiny-GGUF/Tiny-F32.gguf")
    wait(lambda: " kB of" in texts(page.transits))
    click(button(page.transits, "Cancel Tiny-F32"))
    wait(lambda: not page.transits.isVisible())
    library = Path(app.node.environment["BATON_MODELS"])
    assert [path.name for path in library.iterdir() if "Tiny" in path.name and ".partial" in path.name] == []


def test_what_the_hub_does_not_give_is_explained(
    app: Opened, page: ModelsPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    toasts: list[str] = []
    monkeypatch.setattr(app.window, "toast", lambda text, action=None: toasts.append(text))
    click(button(app.window, "Get models"))
    page.get.field.setText("https://huggingface.co/meta/Closed-GGUF/blob/main/Closed-F32.gguf")
    click(button(page.get, "Search"))
    wait(lambda: "from your link" in texts(page.get))
    assert "agreed to its terms" in texts(page.get)
    click(button(page.get, "Get Closed-F32"))
    wait(lambda: "agree there" in texts(page.transits))
    assert button(page.transits, "Try again Closed-F32").isVisible()
    # its row says it, and nothing else does
    assert toasts == []
    assert ("Closed-F32", True) not in page.library.rows
    page.get.field.setText("odd/Mamba-GGUF")
    click(button(page.get, "Search"))
    wait(lambda: "cannot run 'mamba2'" in texts(page.get))
    assert not button(page.get, "Get Mamba-F32").isEnabled()
    page.get.field.setText("nobody/nothing")
    click(button(page.get, "Search"))
    wait(lambda: "private, or not on the hub" in texts(page.get))


def test_a_file_that_is_dropped_is_imported_and_removed(
    app: Opened, page: ModelsPage, tmp_path: Path
) -> None:
    mine = write_model(tmp_path / "mine.gguf")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF and no more")
    drop(page, mine, broken)
    wait(dialog)
    assert "2 models" in texts(dialog())
    click(button(dialog(), "Copy it"))
    wait(lambda: ("mine", True) in page.library.rows)
    wait(lambda: [each for each in page.transits.shown if each.state == "failed"])
    assert "broken.gguf" in texts(page.transits)
    click(button(page.transits, "Dismiss broken.gguf"))
    assert not page.transits.isVisible()
    page.remove(page.library.rows["mine", True].model)
    click(button(dialog(), "Remove the file"))
    wait(lambda: ("mine", True) not in page.library.rows)
    assert mine.exists() and app.context.preferences.get("import_copies", False)


def test_what_is_no_model_is_refused_at_once(app: Opened, page: ModelsPage, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"other")
    drop(page, tmp_path / "model.safetensors")
    wait(lambda: "model.safetensors is no GGUF file" in texts(app.window))


def test_the_filter_leaves_what_matches_and_offers_a_search(page: ModelsPage) -> None:
    QTest.keyClicks(page.library.filter, "llama q4")
    assert (STARTER, True) in page.library.rows
    page.library.filter.setText("tiny")
    assert not page.library.rows
    click(button(page.library, "Search Hugging Face for it"))
    wait(lambda: page.get.findChildren(_RepositoryRow))


def drop(page: ModelsPage, *files: Path) -> None:
    data = QMimeData()
    data.setUrls([QUrl.fromLocalFile(str(file)) for file in files])
    page.dropEvent(
        QDropEvent(
            QPointF(50, 50),
            Qt.DropAction.CopyAction,
            data,
            Qt.MouseButton.LeftButton,
            Qt.KeyboardModifier.NoModifier,
        )
    )


def dialog() -> QDialog:
    """The one that is open; None while none is."""
    found = QApplication.activeModalWidget()
    return found  # type: ignore[return-value]


def try_again(page: ModelsPage, name: str) -> None:
    """Of two links that came up at once the older one goes, and with it what it carried."""
    if any(each.state == "failed" for each in page.transits.shown):
        click(button(page.transits, f"Try again {name}"))


def test_a_copy_goes_on_without_the_window_and_the_next_one_shows_it(
    node: NodeProcess, tmp_path: Path
) -> None:
    with NodeProcess(tmp_path, "spark", "--port", "0", "--node-port", "0") as spark:
        with opened(node, tmp_path / "window") as app:
            pair(app, spark)
            page = library_of(app)
            wait(lambda: "Fits here and on spark" in texts(page.library.rows[STARTER, True]))
            page.send(page.library.rows[STARTER, True].model)
            wait(lambda: app.state.part("copies"))
        with opened(node, tmp_path / "another window") as app:
            page = library_of(app)
            assert [each["state"] for each in app.state.part("copies")] != ["cancelled"]

            def is_there() -> bool:
                try_again(page, STARTER)
                return page.library.rows[STARTER, True].model.there

            wait(is_there)


def test_a_model_of_the_other_computer_is_copied_here(app: Opened, page: ModelsPage, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    source = write_model(theirs / "theirs.gguf", n_bytes=1 << 20)
    with NodeProcess(tmp_path, "spark", "--port", "0", "--node-port", "0", models=theirs) as spark:
        pair(app, spark)
        wait(lambda: ("theirs", False) in page.library.rows)
        click(button(page.library.rows["theirs", False], "Copy here theirs"))

        def is_here() -> bool:
            try_again(page, "theirs")
            return ("theirs", True) in page.library.rows

        wait(is_here)
        wait(lambda: page.library.rows["theirs", True].model.there)
        library = Path(app.node.environment["BATON_MODELS"])
        assert (library / "theirs.gguf").read_bytes() == source.read_bytes()


def test_a_model_is_copied_to_the_other_computer(app: Opened, page: ModelsPage, tmp_path: Path) -> None:
    with NodeProcess(tmp_path, "spark", "--port", "0", "--node-port", "0") as spark:
        pair(app, spark)
        row = page.library.rows[STARTER, True]
        wait(lambda: "Fits here and on spark" in texts(row))
        (copy,) = [action for action in row.menu().actions() if action.text() == "Copy to spark"]
        assert copy.isEnabled()
        copy.trigger()

        def is_there() -> bool:
            try_again(page, STARTER)
            return row.model.there

        wait(is_there)
        assert "spark" in texts(row) and list((spark.folder / "models").glob("SmolLM2*.gguf"))
        (copy,) = [action for action in row.menu().actions() if action.text() == "Copy to spark"]
        assert not copy.isEnabled()
    wait(lambda: "spark is away" in texts(app.window))
    wait(lambda: page.library.rows[STARTER, True].model.there is False)

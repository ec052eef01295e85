"""What the hub told, as models that can be had."""

from __future__ import annotations

from app.pages.models.hub import catalogue_offers, date_text, file_offers, number_text
from app.pages.models.rows import ModelRow
from app.pages.models.transits import Kind, Transit

FILE = {
    "name": "o/r/sub/A-Q8_0.gguf",
    "file": "sub/A-Q8_0.gguf",
    "title": "A-Q8_0",
    "quantization": "Q8_0",
    "size_bytes": 100,
    "n_files": 1,
}
ENTRY = {
    "name": "small",
    "title": "Small",
    "architecture": "llama",
    "quantization": "Q4_1",
    "licence": "MIT",
    "size_bytes": 100,
    "here": False,
}


def moving(source: str, state: str, done: int = 40) -> Transit:
    return Transit(
        key="k", kind=Kind.DOWNLOAD, name="n", state=state, source=source, done_bytes=done, total_bytes=100
    )


def test_a_file_is_here_when_one_of_its_name_and_size_is() -> None:
    same = ModelRow(model_id="A", here=True, path="/m/A-Q8_0.gguf", size_bytes=100)
    other = ModelRow(model_id="A", here=True, path="/m/A-Q8_0.gguf", size_bytes=101)
    theirs = ModelRow(model_id="A", there=True, path="/m/A-Q8_0.gguf", size_bytes=100)
    assert file_offers([FILE], [same], [])[0].is_here
    assert not file_offers([FILE], [other, theirs], [])[0].is_here


def test_what_is_on_its_way_says_how_far_it_is() -> None:
    (running,) = file_offers([FILE], [], [moving(FILE["name"], "running")])  # type: ignore[arg-type]
    assert (running.share, running.is_running, running.is_here) == (0.4, True, False)
    (paused,) = file_offers([FILE], [], [moving(FILE["name"], "cancelled")])  # type: ignore[arg-type]
    assert (paused.share, paused.is_running) == (0.4, False)


def test_all_that_came_is_not_here_before_it_was_checked() -> None:
    (failed,) = file_offers([FILE], [], [moving(FILE["name"], "failed", 100)])  # type: ignore[arg-type]
    assert not failed.is_here
    (checking,) = file_offers([FILE], [], [moving(FILE["name"], "running", 100)])  # type: ignore[arg-type]
    assert not checking.is_here


def test_of_what_nothing_is_kept_nothing_is_gone_on_with() -> None:
    (failed,) = file_offers([FILE], [], [moving(FILE["name"], "failed", 0)])  # type: ignore[arg-type]
    assert failed.share is None


def test_the_catalogues_models_say_their_licence() -> None:
    (offer,) = catalogue_offers([ENTRY], [], [])
    assert (offer.source, offer.about, offer.share) == ("small", "llama · MIT", None)
    assert offer.needed_bytes > offer.size_bytes
    assert catalogue_offers([{**ENTRY, "here": True}], [], [])[0].is_here
    assert catalogue_offers([ENTRY], [ModelRow(model_id="small", here=True)], [])[0].is_here


def test_numbers_and_dates_are_short() -> None:
    assert [number_text(n) for n in (950, 12_300, 1_340_000)] == ["950", "12k", "1.3M"]
    assert date_text("2026-10-02T08:00:00.000Z") == "2 Oct 2026"
    assert date_text("yesterday") == ""

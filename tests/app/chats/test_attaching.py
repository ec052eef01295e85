"""Text out of files."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

from app.chats import attaching
from app.chats.attaching import pasted_file, read_file
from app.chats.faults import BadFile


def pdf(path: Path, text: str, password: str = "") -> Path:
    """A page with one line in a font that every reader has."""
    writer = PdfWriter()
    page = writer.add_blank_page(300, 300)
    if text:
        font = DictionaryObject(
            {
                NameObject("/Type"): NameObject("/Font"),
                NameObject("/Subtype"): NameObject("/Type1"),
                NameObject("/BaseFont"): NameObject("/Helvetica"),
            }
        )
        fonts = DictionaryObject({NameObject("/F1"): writer._add_object(font)})
        page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
        content = DecodedStreamObject()
        content.set_data(f"BT /F1 12 Tf 20 200 Td ({text}) Tj ET".encode())
        page[NameObject("/Contents")] = writer._add_object(content)
    if password:
        writer.encrypt(password, algorithm="RC4-128")
    writer.write(path)
    return path


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("grüße\r\nzwei".encode(), "grüße\nzwei"),
        ("\ufeffmark".encode(), "mark"),
        ("grüße".encode("utf-16"), "grüße"),
        ("grüße".encode("cp1252"), "grüße"),
        (b"\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
    ],
)
def test_texts_in_their_encodings(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "note.txt"
    path.write_bytes(content)
    file = read_file(path)
    assert (file.name, file.text, file.n_bytes, file.n_tokens) == ("note.txt", text, len(content), None)


def test_the_text_of_a_pdf_file(tmp_path: Path) -> None:
    assert read_file(pdf(tmp_path / "paper.pdf", "A page of words")).text == "A page of words"


def test_a_pdf_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="pictures of pages"):
        read_file(pdf(tmp_path / "scan.pdf", ""))
    with pytest.raises(BadFile, match="has a password"):
        read_file(pdf(tmp_path / "closed.pdf", "secret", password="key"))
    (tmp_path / "broken.pdf").write_bytes(b"%PDF-1.7\nnothing of the kind")
    with pytest.raises(BadFile, match="damaged"):
        read_file(tmp_path / "broken.pdf")


def test_a_pdf_file_that_is_damaged_anywhere_is_said_or_read(tmp_path: Path) -> None:
    whole = pdf(tmp_path / "paper.pdf", "A page of words").read_bytes()
    for at in range(0, len(whole), 7):
        (tmp_path / "damaged.pdf").write_bytes(whole[:at] + b"%PDF-9(<[" + whole[at + 3 :])
        with contextlib.suppress(BadFile):
            read_file(tmp_path / "damaged.pdf")


def test_what_is_no_text_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR")
    (tmp_path / "empty.txt").write_bytes(b" \n")
    (tmp_path / "odd.txt").write_bytes(b"\x81\x8d\x8f")
    for name, says in (
        ("picture.png", "not a text or PDF"),
        ("empty.txt", "no text"),
        ("odd.txt", "encoding"),
        ("missing.txt", "not there any more"),
        (".", "not a file"),
    ):
        with pytest.raises(BadFile, match=says):
            read_file(tmp_path / name)
    monkeypatch.setattr(attaching, "MAX_FILE_BYTES", 3)
    (tmp_path / "large.txt").write_bytes(b"four")
    with pytest.raises(BadFile, match="at most"):
        read_file(tmp_path / "large.txt")


def test_a_pasted_text_gets_a_name_that_is_free() -> None:
    first = pasted_file("a\r\nb\udcff", "Pasted text", ())
    assert (first.name, first.text, first.n_bytes) == ("Pasted text", "a\nb?", 4)
    third = pasted_file("c", "Pasted text", ["Pasted text 2", "notes.txt", "Pasted text"])
    assert third.name == "Pasted text 3" and third.id != first.id


def test_a_text_that_no_model_reads_is_not_attached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attaching, "MAX_TEXT_CHARS", 10)
    with pytest.raises(BadFile, match="11 characters"):
        pasted_file("a" * 11, "Pasted text", ())

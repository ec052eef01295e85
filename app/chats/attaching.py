"""What is attached to a message: text files as they are, PDF files as the text in them, and long texts that are pasted.

Reading a file blocks. Knows no Qt.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection
from pathlib import Path

from app.amounts import size_text
from app.chats.faults import BadFile
from app.chats.model import File, new_id
from app.words import translate

# What a model can read in one go is less than this, and a mistaken file is often more.
MAX_FILE_BYTES = 32 * 1024 * 1024
MAX_TEXT_CHARS = 4_000_000

# A text that is pasted is attached from so many characters on: a question is shorter, and stays in sight beside it.
PASTED_CHARS = 4_000

# Never more in the message itself: a key typed into a line of that length takes 20 ms.
MAX_INLINE_CHARS = 50_000

# A text has none of these, a picture or a program soon does.
_NO_TEXT = frozenset(range(32)) - {9, 10, 12, 13, 27}
_LOOKED_AT_BYTES = 8192

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def read_file(path: Path) -> File:
    """Raises BadFile with why it cannot be attached."""
    try:
        if not path.exists():
            raise BadFile(translate("Files", "{} is not there any more.").format(path.name))
        if not path.is_file():
            raise BadFile(
                translate("Files", "{} is not a file. Attach the files in it one by one.").format(path.name)
            )
        n_bytes = path.stat().st_size
        if n_bytes > MAX_FILE_BYTES:
            raise BadFile(
                translate("Files", "{0} has {1}, and at most {2} are read. Attach a part of it.").format(
                    path.name, size_text(n_bytes), size_text(MAX_FILE_BYTES)
                )
            )
        content = path.read_bytes()
    except OSError as error:
        raise BadFile(
            translate("Files", "{0} cannot be read: {1}.").format(path.name, error.strerror)
        ) from error
    text = _pdf_text(path) if content[:5] == b"%PDF-" else _plain_text(path.name, content)
    if not text.strip():
        raise BadFile(translate("Files", "There is no text in {}.").format(path.name))
    if len(text) > MAX_TEXT_CHARS:
        raise BadFile(
            translate(
                "Files", "{0} has {1} characters, more than any model reads. Attach a part of it."
            ).format(path.name, f"{len(text):,}")
        )
    return File(id=new_id(), name=path.name, text=text, n_bytes=n_bytes)


def pasted_file(text: str, name: str, taken: Collection[str]) -> File:
    """A text as a file of that name, or with a number where the name is taken. Raises BadFile."""
    if len(text) > MAX_TEXT_CHARS:
        raise BadFile(
            translate(
                "Files", "The text has {} characters, more than any model reads. Paste a part of it."
            ).format(f"{len(text):,}")
        )
    numbers = (f"{name} {number}" if number > 1 else name for number in range(1, len(taken) + 2))
    free = next(each for each in numbers if each not in taken)
    content = text.replace("\r\n", "\n").encode("utf-8", "replace")
    return File(id=new_id(), name=free, text=content.decode("utf-8"), n_bytes=len(content))


def _plain_text(name: str, content: bytes) -> str:
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            return _decoded(name, content, encoding)
    if any(byte in _NO_TEXT for byte in content[:_LOOKED_AT_BYTES]):
        raise BadFile(
            translate("Files", "{} is not a text or PDF file. Models here read text only.").format(name)
        )
    try:
        return content.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError:
        return _decoded(name, content, "cp1252")


def _decoded(name: str, content: bytes, encoding: str) -> str:
    try:
        return content.decode(encoding).replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise BadFile(
            translate(
                "Files", "{} is not in an encoding that can be read. Save it as UTF-8 and attach it again."
            ).format(name)
        ) from None


def _pdf_text(path: Path) -> str:
    from pypdf import PdfReader

    try:
        reader = PdfReader(path)
        if reader.is_encrypted and not reader.decrypt(""):
            raise BadFile(
                translate("Files", "{} has a password. Save it without one and attach that.").format(
                    path.name
                )
            )
        pages = [page.extract_text().strip() for page in reader.pages]
    except BadFile:
        raise
    except Exception as error:
        # A damaged file makes pypdf stumble anywhere, over errors of any kind.
        raise BadFile(
            translate(
                "Files", "{} cannot be read as a PDF file: it is damaged, or of an unusual kind."
            ).format(path.name)
        ) from error
    text = "\n\n".join(page for page in pages if page)
    if not text:
        raise BadFile(
            translate(
                "Files", "{} holds pictures of pages and no text. Run text recognition on it first."
            ).format(path.name)
        )
    return text

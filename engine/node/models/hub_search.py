"""Looks for models on the Hugging Face hub: repositories by words, and the GGUF files of one. Fetches no file.

Asked over HTTP from the node's own loop: the hub's package takes a second to import, and blocks while it waits.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

import httpx
import msgspec
from msgspec import Meta

from engine.errors import DownloadFailed, DownloadRefused, ModelFileError, ModelNotFound
from engine.gguf.reader import model_stem, part_paths
from engine.models.spec import PERIODS

# Repositories that a search gives; more would be no help to choose.
MAX_RESULTS = 30

# The hub's own page of a listing; a repository of GGUF files has tens.
_MAX_FILES = 1000
_MAX_ANSWER_BYTES = 16 << 20
_TIMEOUT_S = 15.0

_HUB = "https://huggingface.co"
_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
_REPOSITORY = re.compile(r"[\w-][\w.-]{0,95}/[\w-][\w.-]{0,95}", re.ASCII)
_PROJECTOR = "mmproj"

_QUANTIZATION = re.compile(
    r"(?:^|[.\-_/])((?:UD-)?(?:I?Q\d\w*|TQ\d_\d|BF16|F16|F32|MXFP4\w*))(?=$|[.\-/])", re.IGNORECASE
)

_Answer = TypeVar("_Answer")


class _Repository(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    id: Annotated[str, Meta(max_length=256)]
    downloads: int = 0
    likes: int = 0
    last_modified: str = ""
    gated: bool | str = False
    private: bool = False


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    architecture: str = ""
    context_length: int = 0
    total: int = 0


class _About(_Repository, frozen=True, kw_only=True, rename="camel"):
    gguf: _Header | None = None


class _Lfs(msgspec.Struct, frozen=True):
    oid: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class _File(msgspec.Struct, frozen=True, kw_only=True):
    path: Annotated[str, Meta(max_length=1024)]
    type: str = "file"
    size: int = 0
    lfs: _Lfs | None = None


def named_by(text: str) -> tuple[str, str] | None:
    """The repository, and the file or "", that a pasted address or OWNER/REPO names; None for words to search for."""
    text = text.strip()
    path = text
    if "://" in text or text.split("/", 1)[0].lower() in _HOSTS:
        address = urlsplit(text if "://" in text else f"https://{text}")
        if (address.hostname or "").lower() not in _HOSTS:
            return None
        path = unquote(address.path).strip("/")
    parts = path.split("/")
    repository = "/".join(parts[:2]).split(":", 1)[0]
    if len(parts) < 2 or not _REPOSITORY.fullmatch(repository):
        return None
    rest = parts[2:]
    if len(rest) > 2 and rest[0] in ("blob", "resolve", "raw"):
        rest = rest[2:]
    file = "/".join(rest)
    return repository, file if file.endswith(".gguf") else ""


class HubSearch:
    """`client` for tests; the hub is the one that `$HF_ENDPOINT` names."""

    def __init__(self, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._transport = transport

    async def search(self, words: str) -> list[dict[str, Any]]:
        """Repositories with GGUF files, those that most people fetch first. Raises DownloadFailed."""
        asked = {
            "search": words,
            "filter": "gguf",
            "sort": "downloads",
            "direction": "-1",
            "limit": str(MAX_RESULTS),
            "full": "true",
        }
        found = await self._ask("/api/models", asked, list[_Repository], "it")
        return [_told(repository) for repository in found if not repository.private]

    async def files(self, repository: str) -> dict[str, Any]:
        """A repository, and its models with size and quantisation: those whose digest the hub publishes.

        Raises ModelNotFound for what cannot be a repository, DownloadFailed.
        """
        if not _REPOSITORY.fullmatch(repository):
            raise ModelNotFound(f"{repository[:200]!r} is no repository of the hub: write OWNER/REPO")
        path = f"/api/models/{quote(repository)}"
        about = await self._ask(path, {}, _About, repository)
        files = await self._ask(f"{path}/tree/main", {"recursive": "true"}, list[_File], repository)
        header = about.gguf or _Header()
        return {
            **_told(about),
            "architecture": header.architecture,
            "n_ctx_train": header.context_length,
            "n_params": header.total,
            "problem": _problem(header.architecture),
            "files": _models(repository, files[:_MAX_FILES]),
        }

    async def _ask(self, path: str, query: dict[str, str], kind: type[_Answer], what: str) -> _Answer:
        url = os.environ.get("HF_ENDPOINT", _HUB).rstrip("/") + path
        try:
            async with (
                httpx.AsyncClient(
                    timeout=_TIMEOUT_S, follow_redirects=True, transport=self._transport
                ) as client,
                client.stream("GET", url, params=query) as answer,
            ):
                if answer.is_error:
                    raise refused(answer.status_code, what)
                body = b""
                async for block in answer.aiter_bytes():
                    body += block
                    if len(body) > _MAX_ANSWER_BYTES:
                        raise DownloadFailed("the Hugging Face hub answers without end: try again later")
            return msgspec.json.decode(body, type=kind)
        except httpx.HTTPError as error:
            raise DownloadFailed(
                "the Hugging Face hub cannot be reached: check this computer's connection to the internet, and try "
                f"again ({reason(error)})"
            ) from error
        except msgspec.MsgspecError as error:
            raise DownloadFailed(
                f"the Hugging Face hub answers with something else than asked ({error})"
            ) from error


def reason(error: Exception) -> str:
    """Why the hub was not reached, in words for its user: without numbers of the system's."""
    before: BaseException | None = error
    while before is not None:
        if isinstance(before, socket.gaierror):
            return "its name is not found: this computer seems to have no internet now"
        if isinstance(before, TimeoutError | httpx.TimeoutException):
            return "it did not answer in time"
        if isinstance(before, OSError) and before.errno is not None and before.strerror:
            return os.strerror(before.errno)
        before = before.__cause__ or before.__context__
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def refused(status: int, what: str) -> DownloadRefused:
    """Why the hub gives nothing of a repository, by the status of its answer, and what to do."""
    page = f"{_HUB}/{what}"
    match status:
        case 401:
            return DownloadRefused(
                f"{what} is private, or not on the hub: check its name; for a private one sign in once with "
                "`hf auth login` on this computer"
            )
        case 403:
            return DownloadRefused(
                f"{what} is given only to who has agreed to its terms: open {page}, agree there, sign in once with "
                "`hf auth login` on this computer, and try again"
            )
        case 404:
            return DownloadRefused(f"{what} is not on the hub: check its name")
        case 429:
            return DownloadRefused("the Hugging Face hub was asked too often: wait a minute, and try again")
    return DownloadRefused(
        f"the Hugging Face hub has a problem of its own (status {status}): try again later"
    )


def quantization_in(name: str) -> str:
    """As a file's name says it, "" where it says none: the last one, as in `Model-BF16-Q4_K_M`."""
    found = _QUANTIZATION.findall(name.removesuffix(".gguf"))
    return found[-1].upper() if found else ""


def _told(repository: _Repository) -> dict[str, Any]:
    return {
        "repository": repository.id,
        "downloads": repository.downloads,
        "likes": repository.likes,
        "updated": repository.last_modified,
        "gated": bool(repository.gated),
    }


def _problem(architecture: str) -> str:
    if not architecture or architecture in PERIODS:
        return ""
    *most, last = sorted(PERIODS)
    return f"Baton cannot run {architecture!a} models yet: it runs {', '.join(most)} and {last}"


def _models(repository: str, files: Iterable[_File]) -> list[dict[str, Any]]:
    """Whole models, the smallest first; parts of a split one together."""
    known = {file.path: file for file in files if file.type == "file" and file.lfs and _is_model(file.path)}
    models = []
    for path in known:
        try:
            parts = [part.as_posix() for part in part_paths(Path(path))]
        except ModelFileError:
            continue
        if parts[0] == path and all(part in known for part in parts):
            models.append(
                {
                    "name": f"{repository}/{path}",
                    "file": path,
                    "title": model_stem(Path(path)),
                    "quantization": quantization_in(model_stem(Path(path))),
                    "size_bytes": sum(known[part].size for part in parts),
                    "n_files": len(parts),
                }
            )
    return sorted(models, key=lambda model: (model["size_bytes"], model["file"]))


def _is_model(path: str) -> bool:
    return path.endswith(".gguf") and _PROJECTOR not in path.rsplit("/", 1)[-1].lower()

"""Fetches one file from the Hugging Face hub, going on where an earlier try stopped.

The hub's own package says where the file lies and what its digest is. The bytes are fetched here, since that package
throws an unfinished file away. Slow to import: import it when something is to be fetched.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import httpx
from huggingface_hub import get_hf_file_metadata, hf_hub_url
from huggingface_hub.errors import HTTPError as HubError  # type: ignore[attr-defined]
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

from engine.errors import DownloadFailed
from engine.node.models.catalogue import HubSource
from engine.node.models.hub_search import reason, refused
from engine.node.progress import Progress

# A hub that does not answer must not keep the second source waiting for long.
CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 30.0

# Tries in a row that bring no new byte before the source is given up.
MAX_FRUITLESS_TRIES = 3

# By these the hub says that another try is as good as none.
_FINAL = (401, 403, 404)


class HubFile:
    """A file on the hub: `size_bytes`, and the `sha256` to expect, which is the catalogue's where it states one."""

    def __init__(self, source: HubSource) -> None:
        """Ask the hub about the file. Raises DownloadFailed."""
        self._repository = source.repository
        self.name = f"{source.repository}/{source.file}"
        endpoint = os.environ.get("HF_ENDPOINT")
        self._url = hf_hub_url(source.repository, source.file, revision=source.revision, endpoint=endpoint)
        try:
            metadata = get_hf_file_metadata(self._url, timeout=CONNECT_TIMEOUT_S, endpoint=endpoint)
        except (HubError, OSError, ValueError) as error:
            if (status := _status(error)) is not None:
                raise refused(status, self._what(status)) from error
            raise DownloadFailed(f"the hub cannot be asked for {self.name} ({reason(error)})") from error
        published = (metadata.etag or "").lower()
        if source.sha256 is None and not re.fullmatch("[0-9a-f]{64}", published):
            raise DownloadFailed(f"the hub publishes no digest for {self.name}, so it cannot be verified")
        if metadata.size is None:
            raise DownloadFailed(f"the hub does not say how large {self.name} is")
        self.size_bytes = metadata.size
        self.sha256 = source.sha256 or published

    def fetch(self, partial: Path, progress: Progress) -> None:
        """Bring `partial` to its full size, keeping the bytes it has. Raises DownloadFailed; OSError of the disk."""
        timeout = httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        headers = {**build_hf_headers(), "accept-encoding": "identity"}
        fruitless = 0
        with httpx.Client(headers=headers, timeout=timeout, follow_redirects=True) as client:
            while (have := _size(partial)) < self.size_bytes:
                status = None
                try:
                    self._fetch_rest(client, partial, have, progress)
                    why = "the connection ended early"
                except httpx.HTTPError as error:
                    status, why = _status(error), reason(error)
                fruitless = 0 if _size(partial) > have else fruitless + 1
                if status is not None and (status in _FINAL or fruitless == MAX_FRUITLESS_TRIES):
                    raise refused(status, self._what(status))
                if fruitless == MAX_FRUITLESS_TRIES:
                    raise DownloadFailed(f"the hub does not give {self.name} ({why})")

    def _what(self, status: int) -> str:
        """Whose absence or refusal a status tells: a file is missing, but a repository is closed."""
        return self.name if status == 404 else self._repository

    def _fetch_rest(self, client: httpx.Client, partial: Path, have: int, progress: Progress) -> None:
        headers = {"range": f"bytes={have}-"} if have else {}
        with client.stream("GET", self._url, headers=headers) as response:
            response.raise_for_status()
            # a server that ignores the range sends the file from its start
            if response.status_code != httpx.codes.PARTIAL_CONTENT:
                have = 0
            with partial.open("ab" if have else "wb") as file:
                # as they come: blocks of one size would be lost in part when the connection breaks
                for block in response.iter_raw():
                    have += len(block)
                    if have > self.size_bytes:
                        raise DownloadFailed(f"the hub gives more of {self.name} than the file has")
                    file.write(block)
                    progress.advance(have, self.size_bytes)


def _status(error: Exception) -> int | None:
    """The status by which the hub said no; None where it said nothing."""
    response = getattr(error, "response", None)
    if response is None:
        return None
    # who has agreed to nothing hears 401 as well
    return 403 if response.headers.get("x-error-code") == "GatedRepo" else int(response.status_code)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0

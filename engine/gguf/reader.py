"""Opens a model: one GGUF file, or all the parts of a split one, mapped into memory.

The bytes of tensors are handed out as views of the mapping; nothing is copied or unpacked here, and no torch
is needed. Headers are parsed in `header`.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from engine.errors import ModelFileError, ModelNotFound
from engine.gguf.header import Header, parse_header
from engine.gguf.metadata import Metadata
from engine.gguf.types import TensorInfo

# "model-00001-of-00003.gguf"
_PART_NAME = re.compile(r"(?P<stem>.*)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL)

# Each part costs a file descriptor; the largest models are published in fewer than a hundred.
MAX_PARTS = 512

_INCOMPLETE = "download all parts of the model into one folder"


class GGUFFile:
    """A model's metadata, tensor entries and bytes.

    `metadata` is that of the first part. `tensors` maps names to entries, in file order, over all parts.
    `paths` are the parts. A context manager; `close` may be called twice, and views that were handed out stay
    valid.

    A file must not be shortened while it is open: reading a mapped page that is gone kills the process.
    """

    metadata: Metadata
    tensors: Mapping[str, TensorInfo]
    paths: tuple[Path, ...]

    def __init__(self, parts: list[_Part]) -> None:
        """Join parsed parts; `open` is the way to make one."""
        self._parts = parts
        self.paths = tuple(part.path for part in parts)
        self.metadata = parts[0].header.metadata
        tensors: dict[str, TensorInfo] = {}
        for part in parts:
            for tensor in part.header.tensors:
                if tensor.name in tensors:
                    raise ModelFileError(
                        f"{part.path}: the tensor {tensor.name!a} is already in another part; {_INCOMPLETE}"
                    )
                tensors[tensor.name] = tensor
        self.tensors = MappingProxyType(tensors)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open the model at `path`; any part of a split model opens all of them.

        Raises ModelNotFound when there is no such file, and ModelFileError when it cannot be read, is not
        sound, or is a part whose companions are missing or do not fit.
        """
        path = Path(path)
        if not path.exists():
            raise ModelNotFound(
                f"{path}: there is no such file; check the name, or get it with `baton models get`"
            )
        with contextlib.ExitStack() as undo:
            parts = []
            for number, part_path in enumerate(part_paths(path)):
                part = _Part(part_path, number)
                undo.callback(part.close)
                parts.append(part)
            _check_parts(parts)
            file = cls(parts)
            undo.pop_all()
        return file

    @property
    def architecture(self) -> str:
        """The model family's name, such as "llama"."""
        return self.metadata.text("general.architecture")

    @property
    def n_bytes(self) -> int:
        """Bytes of all parts together."""
        return sum(part.n_bytes for part in self._parts)

    def tensor_bytes(self, name: str) -> memoryview:
        """The bytes of tensor `name`, without a copy.

        The view is writable so that torch can share it, but what is written stays in this process: the file
        never changes. It stays valid after `close`. Raises ModelFileError when the model has no such tensor.
        """
        info = self.tensors.get(name)
        if info is None:
            raise ModelFileError(
                f"{self.paths[0]}: the model has no tensor {name!a}; download it again, or convert it anew"
            )
        return self._parts[info.part].view(info.offset, info.n_bytes)

    def close(self) -> None:
        """Unmap the files; where views are still held, the mapping goes with the last of them."""
        for part in self._parts:
            part.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Part:
    """One mapped file and its parsed header."""

    def __init__(self, path: Path, number: int) -> None:
        self.path = path
        self._map = _map_file(path)
        self.n_bytes = len(self._map)
        try:
            with memoryview(self._map) as data:
                self.header: Header = parse_header(data, file=str(path), part=number)
        except BaseException:
            self.close()
            raise

    def view(self, offset: int, n_bytes: int) -> memoryview:
        return memoryview(self._map)[offset : offset + n_bytes]

    def close(self) -> None:
        # views still held keep the mapping; it is unmapped when the last of them goes
        with contextlib.suppress(BufferError):
            self._map.close()


def _map_file(path: Path) -> mmap.mmap:
    """Map `path` privately: torch shares only writable buffers, and the file must stay as it is."""
    try:
        # opening a pipe would wait for its other end
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ModelFileError(f"{path}: this is not a file; choose a model file that ends in .gguf")
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise ModelFileError(f"{path}: this part of the model is missing; {_INCOMPLETE}") from None
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be opened ({error.strerror}); check its permissions") from None
    try:
        # without a reservation a file larger than memory can be mapped too
        no_reserve = getattr(mmap, "MAP_NORESERVE", 0)
        return mmap.mmap(
            descriptor, 0, flags=mmap.MAP_PRIVATE | no_reserve, prot=mmap.PROT_READ | mmap.PROT_WRITE
        )
    except ValueError:
        raise ModelFileError(f"{path}: the file is empty; download it again") from None
    except OSError as error:
        raise ModelFileError(
            f"{path}: cannot be read into memory ({error.strerror}); choose a model file, and check the disk"
        ) from None
    finally:
        os.close(descriptor)


def model_stem(path: Path) -> str:
    """The name of the model's file without its ending, and without which part it is."""
    match = _PART_NAME.fullmatch(path.name)
    return path.stem if match is None else match["stem"]


def part_paths(path: Path) -> Iterator[Path]:
    """All parts that the name of `path` speaks of, in order; only itself where it speaks of none.

    Raises ModelFileError for numbers that cannot be.
    """
    match = _PART_NAME.fullmatch(path.name)
    if match is None:
        yield path
        return
    number, count = int(match["number"]), int(match["count"])
    if not 1 <= number <= count or count > MAX_PARTS:
        raise ModelFileError(
            f"{path}: no model has a part {number} of {count} (at most {MAX_PARTS} are read); "
            "give the file the name it was published under"
        )
    for index in range(1, count + 1):
        yield path.with_name(f"{match['stem']}-{index:05d}-of-{count:05d}.gguf")


def _check_parts(parts: list[_Part]) -> None:
    """Refuse parts that do not say of themselves what their names say."""
    for number, part in enumerate(parts):
        metadata = part.header.metadata
        count = metadata.integer("split.count", 1)
        if count not in (0, 1) and len(parts) == 1:
            raise ModelFileError(
                f"{part.path}: this is one part of {count} of a split model, but its name does not end in "
                f"-00001-of-{count:05d}.gguf; give all parts the names they were published under"
            )
        if max(count, 1) != len(parts):
            raise ModelFileError(
                f"{part.path}: named as one part of {len(parts)}, but it says that there are {count};"
                f" {_INCOMPLETE}"
            )
        if metadata.integer("split.no", number) != number:
            raise ModelFileError(
                f"{part.path}: named as part {number + 1}, but it says that it is part "
                f"{metadata.integer('split.no') + 1}; give all parts the names they were published under"
            )
    n_tensors = sum(len(part.header.tensors) for part in parts)
    claimed = parts[0].header.metadata.integer("split.tensors.count", n_tensors)
    if len(parts) > 1 and claimed != n_tensors:
        raise ModelFileError(
            f"{parts[0].path}: the parts hold {n_tensors} tensors, where {claimed} belong to the model;"
            f" {_INCOMPLETE}"
        )

"""Makes a wheel of this very installation, and the archive that installs it on another computer.

The files are those that run here, and the versions of what they need are those that are installed here; nothing is
compiled, and no network is needed. The same files always make the same archive, so that its digest names them.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import io
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from engine.errors import HostError
from engine.node.setup import installer

_PROJECT = "baton"
_PACKAGES = ("app", "engine", "resources")

# The oldest time that a zip can hold, for every file: the same files make the same archive.
_TIME = (1980, 1, 1, 0, 0, 0)
_MODE = 0o644 << 16

_WHEEL = "Wheel-Version: 1.0\nGenerator: baton\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_ENTRY_POINTS = "[console_scripts]\nbaton = app.__main__:main\n"

_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, kw_only=True)
class Archive:
    """What `python3 FILE` installs Baton with."""

    version: str
    data: bytes

    @property
    def wheel_name(self) -> str:
        return _wheel_name(self.version)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


def make_archive() -> Archive:
    """Raises HostError where this installation cannot be copied."""
    own = _own_distribution()
    content = {
        "__main__.py": Path(installer.__file__).read_bytes(),
        installer.CONSTRAINTS: _constraints(own).encode(),
        _wheel_name(own.version): _wheel(own),
    }
    return Archive(version=own.version, data=_zip(content))


def is_development() -> bool:
    """Whether this runs from a checkout, which nobody but its owner should change."""
    return '"editable": true' in (_own_distribution().read_text("direct_url.json") or "")


def _own_distribution() -> Distribution:
    try:
        return distribution(_PROJECT)
    except PackageNotFoundError as error:
        raise HostError(
            "this Baton was not installed as a package, so it cannot be copied from here"
        ) from error


def _wheel_name(version: str) -> str:
    return f"{_PROJECT}-{version}-py3-none-any.whl"


def _wheel(own: Distribution) -> bytes:
    info = f"{_PROJECT}-{own.version}.dist-info"
    content = dict(_package_files())
    content[f"{info}/METADATA"] = _metadata(own).encode()
    content[f"{info}/WHEEL"] = _WHEEL.encode()
    content[f"{info}/entry_points.txt"] = _ENTRY_POINTS.encode()
    record = "".join(f"{name},{_record_digest(data)},{len(data)}\n" for name, data in content.items())
    content[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    return _zip(content)


def _package_files() -> Iterator[tuple[str, bytes]]:
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise HostError(
                f"the folder of {package} is not to be found, so Baton cannot be copied from here"
            )
        root = Path(spec.submodule_search_locations[0])
        for path in sorted(root.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith("."):
                yield f"{package}/{path.relative_to(root).as_posix()}", path.read_bytes()


def _metadata(own: Distribution) -> str:
    """Name, version and what is required; the extras of development stay here."""
    lines = ["Metadata-Version: 2.1", f"Name: {_PROJECT}", f"Version: {own.version}"]
    lines += [f"Requires-Python: >={'.'.join(map(str, installer.OLDEST_PYTHON))}"]
    lines += [
        f"Requires-Dist: {requirement}" for requirement in own.requires or () if "extra ==" not in requirement
    ]
    return "\n".join(lines) + "\n"


def _constraints(own: Distribution) -> str:
    """The versions here of all that Baton needs, and of what those need; a build's own mark (+cpu) is left out."""
    versions: dict[str, str] = {}
    pending = [own]
    while pending:
        for requirement in pending.pop().requires or ():
            name = _REQUIREMENT.match(requirement)
            if name is None or "extra ==" in requirement or _normal(name[0]) in versions:
                continue
            try:
                found = distribution(name[0])
            except PackageNotFoundError:  # for another system
                continue
            versions[_normal(name[0])] = found.version.partition("+")[0]
            pending.append(found)
    return "".join(f"{name}=={version}\n" for name, version in sorted(versions.items()))


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _record_digest(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _zip(content: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in content.items():
            entry = zipfile.ZipInfo(name, _TIME)
            entry.external_attr = _MODE
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return file.getvalue()

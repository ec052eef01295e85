"""One window for each user: a second start calls the first one and ends."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from PySide6.QtCore import QDeadlineTimer, QLockFile, QObject, QThread, Signal
from PySide6.QtNetwork import QLocalServer, QLocalSocket

_ANSWER_MS = 1000

# Between taking the place and listening, the first one needs a moment.
_LISTENS_WITHIN_MS = 2000
_LOOK_EVERY_MS = 50


class SingleInstance(QObject):
    """`is_second` where another has the place already, which has then been called; `called` when one calls us."""

    called = Signal()

    def __init__(self, place: str) -> None:
        """`place` is what instances share: a folder of the user's."""
        super().__init__()
        name = "baton-" + hashlib.sha256(place.encode()).hexdigest()[:16]
        self._server: QLocalServer | None = None
        # Two that are started at once find nobody to call: the lock decides between them.
        self._lock = _lock_in(Path(place))
        is_held = not self._lock.tryLock(0) and self._lock.error() is QLockFile.LockError.LockFailedError
        self.is_second = _call_when_it_listens(name) if is_held else _call(name)
        if self.is_second:
            return
        # What a killed one left behind is in the way of the next.
        QLocalServer.removeServer(name)
        self._server = QLocalServer(self)
        self._server.setSocketOptions(QLocalServer.SocketOption.UserAccessOption)
        self._server.newConnection.connect(self._answer)
        self._server.listen(name)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._lock.unlock()

    def _answer(self) -> None:
        assert self._server is not None
        while (socket := self._server.nextPendingConnection()) is not None:
            socket.disconnected.connect(socket.deleteLater)
            socket.disconnectFromServer()
            self.called.emit()


def _lock_in(folder: Path) -> QLockFile:
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    lock = QLockFile(str(folder / "window.lock"))
    # one that was killed is known by its process id alone
    lock.setStaleLockTime(0)
    return lock


def _call_when_it_listens(name: str) -> bool:
    give_up = QDeadlineTimer(_LISTENS_WITHIN_MS)
    while not (is_called := _call(name)) and not give_up.hasExpired():
        QThread.msleep(_LOOK_EVERY_MS)
    return is_called


def _call(name: str) -> bool:
    socket = QLocalSocket()
    socket.connectToServer(name)
    if not socket.waitForConnected(_ANSWER_MS):
        return False
    socket.waitForDisconnected(_ANSWER_MS)
    return True

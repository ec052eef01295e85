"""One window for each user: a second start calls the first one and ends."""

from __future__ import annotations

import hashlib

from PySide6.QtCore import QObject, Signal
from PySide6.QtNetwork import QLocalServer, QLocalSocket

_ANSWER_MS = 1000


class SingleInstance(QObject):
    """`is_second` where another has the place already, which has then been called; `called` when one calls us."""

    called = Signal()

    def __init__(self, place: str) -> None:
        """`place` is what instances share: a folder of the user's."""
        super().__init__()
        name = "baton-" + hashlib.sha256(place.encode()).hexdigest()[:16]
        self.is_second = _call(name)
        self._server: QLocalServer | None = None
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

    def _answer(self) -> None:
        assert self._server is not None
        while (socket := self._server.nextPendingConnection()) is not None:
            socket.disconnected.connect(socket.deleteLater)
            socket.disconnectFromServer()
            self.called.emit()


def _call(name: str) -> bool:
    socket = QLocalSocket()
    socket.connectToServer(name)
    if not socket.waitForConnected(_ANSWER_MS):
        return False
    socket.waitForDisconnected(_ANSWER_MS)
    return True

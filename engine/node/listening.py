"""Whether this computer can listen at an address: found out before anything is loaded, and said in words."""

from __future__ import annotations

import errno
import os
import socket

# What looking a name up may end with, where it comes as the number of an OSError.
_NO_SUCH_NAME = {
    getattr(socket, name)
    for name in ("EAI_NONAME", "EAI_NODATA", "EAI_AGAIN", "EAI_FAIL")
    if hasattr(socket, name)
}


def listening_fault(host: str, port: int) -> str:
    """Why nobody can listen there just now; nothing where one can. Port 0 is any free one."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # Looked up, since an address of one link alone is bound by the number of its zone, which only this tells.
        place = socket.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)[0][4]
        socket.create_server(place, family=family).close()
    except UnicodeError:
        return _reason(socket.EAI_NONAME, port)
    except OSError as error:
        return _reason(error.errno or errno.EIO, port)
    return ""


def _reason(number: int, port: int) -> str:
    if number in _NO_SUCH_NAME:
        return "there is no computer of that name; 0.0.0.0 stands for every address of this one"
    if number == errno.EADDRINUSE:
        return f"another program listens on port {port}; end it, or choose another port"
    if number == errno.EADDRNOTAVAIL:
        return "this computer does not have that address; 0.0.0.0 stands for every one it has"
    if number in (errno.EACCES, errno.EPERM):
        return f"port {port} is for the system alone; choose one above 1023"
    return f"this computer cannot listen there ({os.strerror(number)}); choose another address"

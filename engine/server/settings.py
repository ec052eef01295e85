"""What can be chosen about the HTTP endpoint, and its limits. Knows no HTTP."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_HOST = "127.0.0.1"

# The longest prompt of a million tokens, as text or as ids, stays well below. Read into memory whole, and what is made
# of it, as long as it is not known to fit the context, takes a small multiple of it.
MAX_BODY_BYTES = 32 << 20

# Messages of one chat: templates take some hundred steps for each, and may take two million.
MAX_MESSAGES = 16384

# Characters that /tokenize takes at once: about a hundred bytes of memory each while it works.
MAX_TOKENIZE_CHARS = 4 << 20

# Clients give up on a silent connection, some after a few seconds: a long prefill says something this often.
KEEPALIVE_S = 1.0

# Choices of one request, over all its prompts; each is a request of its own to the engine.
MAX_CHOICES = 32


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """`api_key` None asks for no key. `allowed_hosts` and `allowed_origins` come on top of the loopback's own.

    `check_host` off lets any Host header pass: for an endpoint that is reachable from other computers by intent, and
    has a key.
    """

    api_key: str | None = None
    check_host: bool = True
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    max_body_bytes: int = MAX_BODY_BYTES
    keepalive_s: float = KEEPALIVE_S

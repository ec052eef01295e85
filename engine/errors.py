"""Every error Baton raises on purpose, in one tree split by who is at fault.

    BatonError
    ├── UserError                what was asked cannot be done as asked
    │   ├── ModelFileError       the model file is broken, cut short or not GGUF
    │   ├── UnsupportedModel     a sound file of a kind Baton does not know
    │   ├── ModelNotFound        no such file and no such catalogue name
    │   ├── InvalidRequest       a request field is missing or out of range
    │   └── PromptTooLong        the prompt does not fit the context
    ├── PeerError                the other computer
    │   ├── PeerUnreachable      no connection could be made
    │   ├── PeerUntrusted        its certificate is not the trusted one
    │   ├── PeerIncompatible     the hello names another model, layout or version
    │   ├── PeerRefused          it answered busy or no
    │   ├── PeerLost             the connection broke, or it fell silent
    │   └── ProtocolError        it sent what the protocol forbids
    └── HostError                this computer
        ├── OutOfMemory          the model or its cache does not fit
        ├── DiskFull             a file could not be written
        ├── DownloadFailed       every source failed, or the digest is wrong
        │   └── DownloadRefused  the source does not give it to this user
        └── ProcessFailed        a process of ours did not start, or ended

The message of each is a sentence for the user: what happened and what to do. Nothing here knows of HTTP,
sockets or torch; the borders (server, command line, wire) translate.
"""

from typing import Self


class BatonError(Exception):
    """Base of all errors raised on purpose; `str()` of it can be shown to a user as it is.

    `word` is for programs, where one of them has to know just what happened.
    """

    word: str | None = None

    def worded(self, word: str) -> Self:
        """The same error, with its word."""
        self.word = word
        return self


class UserError(BatonError):
    """What was asked cannot be done as asked."""


class ModelFileError(UserError):
    """The model file is broken, cut short or not GGUF."""


class UnsupportedModel(UserError):
    """The file is sound, but of an architecture, tensor type or tokenizer that Baton does not know."""


class ModelNotFound(UserError):
    """Neither a file nor a catalogue name."""


class InvalidRequest(UserError):
    """A field of a request is missing, of the wrong type or out of range.

    `param` names the field, or is None where no single field is at fault.
    """

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class PromptTooLong(UserError):
    """The prompt leaves no room for an answer in the context of a slot; counts are in tokens.

    `at_least`: it was too long to be counted, and has at least so many.
    """

    def __init__(self, *, n_prompt_tokens: int, n_ctx: int, at_least: bool = False) -> None:
        super().__init__(
            f"the prompt has {'at least ' if at_least else ''}{n_prompt_tokens} tokens and the context holds {n_ctx}: "
            "shorten the prompt, or make more room (baton config set ctx, then baton config reload; or --ctx)"
        )
        self.n_prompt_tokens = n_prompt_tokens
        self.n_ctx = n_ctx


class PeerError(BatonError):
    """The other computer, or the way to it, is at fault. Never fails a request: it is prefilled locally."""


class PeerUnreachable(PeerError):
    """No connection could be made."""


class PeerUntrusted(PeerError):
    """The certificate shown is not the one trusted."""


class PeerIncompatible(PeerError):
    """The hello names another protocol version, model, tokenizer or cache layout; the message names both sides."""


class PeerRefused(PeerError):
    """The worker answered busy, or refused the request."""


class PeerLost(PeerError):
    """The connection broke, or nothing was heard for longer than the heartbeat allows."""


class ProtocolError(PeerError):
    """Bytes or messages that the protocol does not allow."""


class HostError(BatonError):
    """This computer could not do what is needed."""


class OutOfMemory(HostError):
    """The model or its cache does not fit in memory."""


class DiskFull(HostError):
    """A file could not be written whole."""


class DownloadFailed(HostError):
    """Every source of a file failed, or what came has the wrong digest."""


class DownloadRefused(DownloadFailed):
    """The source does not give the file; another try without another step would change nothing."""


class ProcessFailed(HostError):
    """A process of ours did not start, or ended when it should not."""

"""What two paired nodes say to each other: one frozen struct a message, framed as on the KV link.

Either end calls the other, whoever dialled: a call has a number of the caller's, and ends with `Answer` or `Failed`;
before that any number of `Part`s may come. What a method takes and gives is known to whoever offers it.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from engine.wire.messages import Count, Name, Text, Version

# Of this protocol between nodes. Another major is another protocol; what a higher minor adds, a lower one refuses by
# name.
NODE_PROTOCOL_MAJOR = 1
NODE_PROTOCOL_MINOR = 0

# Offered by ALPN.
NODE_PROTOCOL = "baton-node/1"

# A request to the endpoint may be passed on whole (32 MiB), with room for what goes with it.
MAX_MESSAGE_BYTES = 34 << 20

# Of an answer, or a part of one, that is no bytes and no text: an empty object takes one byte here, and 72 in memory.
MAX_NESTED_BYTES = 2 << 20

# What a method takes that says no other limit of its own.
MAX_PARAMS_BYTES = 64 << 10

# Calls that one end may have open at the other.
MAX_OPEN_CALLS = 256

# What those that one end has open may hold together.
MAX_OPEN_BYTES = 4 * MAX_MESSAGE_BYTES

# Parts that wait for whoever reads them, of one call.
MAX_WAITING_BYTES = 64 << 20

# What a part takes in memory beside its own bytes.
PART_BYTES = 512

# What an end that does not read leaves in the other's memory: one message that is waited for, and small ones beside it.
MAX_UNREAD_BYTES = MAX_MESSAGE_BYTES + (4 << 20)

MethodName = Annotated[str, Meta(min_length=1, max_length=64)]
NodeId = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
Instance = Annotated[str, Meta(pattern=r"^[0-9a-f]{16,32}\Z")]


class NodeMessage(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Base of all."""


class NodeHello(NodeMessage, frozen=True):
    """The first message of either end. `instance` is drawn anew at each start; `baton` is the program's version."""

    protocol_major: Version
    protocol_minor: Version
    baton: Name
    node_id: NodeId
    instance: Instance
    name: Name


class Beat(NodeMessage, frozen=True):
    """A sign of life."""


class Tell(NodeMessage, frozen=True):
    """Something to know; nothing comes back."""

    method: MethodName
    params: msgspec.Raw


class Call(NodeMessage, frozen=True):
    number: Count
    method: MethodName
    params: msgspec.Raw


class Part(NodeMessage, frozen=True):
    number: Count
    value: msgspec.Raw


class Answer(NodeMessage, frozen=True):
    number: Count
    value: msgspec.Raw


class Failed(NodeMessage, frozen=True):
    number: Count
    message: Text


class Cancel(NodeMessage, frozen=True):
    """The caller does not want the rest."""

    number: Count


class Goodbye(NodeMessage, frozen=True):
    """Nothing follows; the other end is told why."""

    message: Text


NodeMessages = NodeHello | Beat | Tell | Call | Part | Answer | Failed | Cancel | Goodbye
NODE_MESSAGES = msgspec.msgpack.Decoder(NodeMessages)

"""Every limit of the wire protocol: a constant with its unit in the name and its reason above it.

A limit is checked before anything is allocated for what it limits. Nothing here knows sockets or messages.
"""

from __future__ import annotations

# Version of the protocol. Another major is another protocol; a higher minor adds messages that a lower one
# does not know, so a worker may be older than its client and never newer.
PROTOCOL_MAJOR = 1
PROTOCOL_MINOR = 0

# A hello carries one short record a layer; 64 KiB hold a thousand layers. Until the hello is through, no
# larger frame is read, so a peer that never says hello costs this much memory and no more.
MAX_HELLO_BYTES = 64 * 1024

# A prompt longer than this fits no model we know; the longest contexts today are 1,048,576 positions.
MAX_PROMPT_TOKENS = 1 << 20

# The largest control message is a prefill request: 4 bytes a token, and room for the other fields.
MAX_CONTROL_BYTES = 4 * MAX_PROMPT_TOKENS + 4096

# Control messages on a data stream are only attach and fence_reply.
MAX_STREAM_CONTROL_BYTES = 1024

# Deeper than any model; the layer travels in 16 bits.
MAX_LAYERS = 1024

# Chunks of one handoff: more than the longest prompt has in the smallest of them.
MAX_CHUNKS = 1 << 16

# Smallest and largest chunk: below 16 tokens the frames are mostly overhead; above 8192 nothing overlaps.
MIN_CHUNK_TOKENS = 16
MAX_CHUNK_TOKENS = 8192

# One row of K or V in bytes, and one recurrent state: far above any model, far below what would overflow.
MAX_ROW_BYTES = 1 << 20
MAX_STATE_BYTES = 1 << 30

# Windows and states of all layers, which a worker sets aside to send them before a prompt's end. With more there are no
# checkpoints: a handoff may take 256 MiB beside the cache itself.
MAX_CHECKPOINT_BYTES = 192 << 20

# Handoffs one link carries at a time, running, queued and draining together.
MAX_REQUESTS = 64

# Fences one link may have unanswered.
MAX_FENCES = 64

# Data streams of one link: more do not help a desk's cable.
MAX_DATA_STREAMS = 8

# Adapters and codecs named in a hello.
MAX_ADAPTERS = 16
MAX_CODECS = 16

# Named rope parameters in a hello (a few for each of two kinds of layer).
MAX_ROPE_PARAMETERS = 32

# Names, digests and sentences for the user, in characters.
MAX_NAME_CHARS = 200
MAX_DIGEST_CHARS = 128
MAX_TEXT_CHARS = 1000

# Identifies the data streams that belong to a control connection.
SESSION_BYTES = 16

# A self-signed certificate as DER is about 500 bytes.
MAX_CERTIFICATE_BYTES = 8 * 1024

# Both ends ping once in this time, and give a peer up that was silent for so many of them.
HEARTBEAT_INTERVAL_S = 1.0
HEARTBEAT_MISSES = 3

# Answers to pings from which the one with the shortest round trip tells how far two clocks are apart. Clocks of two
# computers drift by some 20 microseconds a second, so that an older answer says less than a slower one.
CLOCK_SAMPLES = 16

# A worker that answers pings and yet moves no request on for this long is stuck: a chunk of 512 tokens takes
# 25 s on a slow computer without an accelerator.
STALL_TIMEOUT_S = 90.0

# From accepting a connection to the end of its handshake and hello; a home network needs milliseconds.
HANDSHAKE_TIMEOUT_S = 5.0

# Connections that have not authenticated yet; when full, the oldest of them goes, so strangers that hold
# theirs open cannot keep the peer out.
MAX_UNAUTHENTICATED = 16

# Links that one worker serves at a time (two clients, and one that is just being replaced, with room).
MAX_LINKS = 8

# Rows that are packed together on the wire, or one row where that is longer: a processor's cache holds them with all
# that packing takes. Each data stream keeps one such buffer.
BLOCK_BYTES = 128 * 1024

# Asked for on every socket, then halved while the system refuses. Below the least, enough for a pause of the receiver's
# thread at 10 Gbit/s, the system's own sizing does better.
SOCKET_BUFFER_BYTES = 32 << 20
MIN_SOCKET_BUFFER_BYTES = 1 << 20

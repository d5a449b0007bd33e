"""Limits of the sockets and the codes with which they close."""

from __future__ import annotations

from enum import IntEnum

START_S = 10.0
"""Time within which the first message must come, in seconds."""
STALL_S = 60.0
"""Time after which a socket whose peer does not read is ended, in seconds."""
IDLE_S = 60.0
"""Time after which a socket is ended whose peer must send and sends nothing, in seconds."""
RESUME_S = 30.0
"""Time for which a world waits for its viewer after a connection was lost, in seconds."""
MOVE_S = 10.0
"""Time for which a world waits for a session on another replica, in seconds."""
BLOCK_S = 120.0
"""Longest time for one turn of a session, in seconds."""
START_BYTES = 4 << 20
CONTROL_BYTES = 128 << 10
PIECE_BYTES = 4 << 20
"""Largest size of a binary message, in bytes."""
AHEAD_BLOCKS = 2
"""Number of blocks that may be ready and not yet sent."""
OUTBOX_BYTES = 64 << 20
CONTROL_MESSAGES = 64
"""Number of answers that may wait for a peer; the gateway reads no further message until there are fewer."""
PENDING_INTERACTIONS = 64
MOST_WORLDS = 1024
"""Largest number of worlds of one gateway process, those that wait for a viewer included."""


class CloseCode(IntEnum):
    """Code with which the gateway closes a socket (RFC 6455, 7.4.1, and IANA's registry)."""

    DONE = 1000
    WRONG_KIND = 1003
    NOT_JSON = 1007
    RULE_BROKEN = 1008
    TOO_LARGE = 1009
    FAILED = 1011
    REPLICA_GONE = 1012
    TRY_AGAIN = 1013

"""The start of `slipway`: set what Ctrl-C does, then import the commands and run one.

Python takes most of a second to import the commands. An interrupt in that time would end in a traceback, so
the handler stands before the first import of a library.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

_INTERRUPTED = 130


def main() -> None:
    """Run the command line of this process and exit."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_at_once)
    from slipway_cli import root

    root.main()


def _end_at_once(number: int, frame: FrameType | None) -> None:
    """End the process before any work began, so that no exception passes through an import."""
    os.write(2, b"interrupted\n")
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    main()

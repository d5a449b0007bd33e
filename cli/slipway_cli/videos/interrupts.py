"""Ctrl-C for a video whose state can be kept: the first one stops the video, the second one cancels it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from slipway_client.progress import Say


@contextlib.contextmanager
def stop_on_interrupt(stop: threading.Event, sentence: str, say: Say) -> Iterator[None]:
    """Set an event at the first Ctrl-C while the block runs; the second one interrupts as it did before.

    A process that ignores SIGINT, as a shell's background process does, keeps ignoring it.

    Args:
        stop: Event to set.
        sentence: Sentence that tells the user about it.
        say: Callback that prints the sentence.
    """
    before = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or before is None or before is signal.SIG_IGN:
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        stop.set()
        # Python refuses to write if the signal interrupted a write to the same stream.
        with contextlib.suppress(RuntimeError):
            say(sentence)

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)

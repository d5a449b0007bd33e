"""Turns that are steered while others are worked on."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from slipway_client import Latest
from slipway_serving.protocol.turns import Session, Turn, Turns


def test_latest_counts_for_the_next_turn_when_several_come_while_one_is_worked_on() -> None:
    latest, sent = Latest("w"), list[str]()

    def send(content: str | None, turn: Turn) -> Iterator[str]:
        if content is None:
            return
        sent.append(content)
        # From another thread, as a player's keys come.
        for key in {"w": "ad", "d": "", "s": "w"}[content]:
            pressed = threading.Thread(target=latest.set, args=(key,))
            pressed.start()
            pressed.join()
        if len(sent) == 3:
            latest.set("s")
        if content == "s":
            latest.end()
        yield content

    with Session(send, Turns()) as session:
        seen = [answer for content in latest for answer in session.step(content)]
    # "a" came too early to count, "d" holds until "s" comes, and "w" after the end begins nothing.
    assert seen == sent == ["w", "d", "d", "s"]

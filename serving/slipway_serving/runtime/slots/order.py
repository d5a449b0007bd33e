"""Order in which requests get the slots of a pipeline; pure functions of the requests and the time.

A free slot goes to the waiting request of the highest rank. The rank is the priority, and each
`aging_s` of waiting raises it by one priority, so no request waits for ever behind a stream of others. If all
slots are taken and a request waits whose own priority is higher than that of a running one, the youngest
running request of the lowest priority gives up its slot at its next step. Aging alone sets nobody aside, and
a request is set aside at most :data:`MOST_SET_ASIDE` times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MOST_SET_ASIDE = 3
"""Number of times that a request may be set aside; after that it keeps its slot until its end."""


@dataclass(frozen=True)
class Entry:
    """A request in one of a pipeline's processes.

    Attributes:
        name: Name that no other request has.
        priority: Number of the priority, 0 for the most urgent.
        arrived_s: Time of arrival, in seconds since a fixed point.
        waiting_since_s: Time since which the request waits; None while it has a slot.
        set_aside: Number of times that the request was set aside.
        can_stop: True if the request can be set aside.
    """

    name: str
    priority: int
    arrived_s: float
    waiting_since_s: float | None
    set_aside: int = 0
    can_stop: bool = True


def waiting_in_order(entries: Sequence[Entry], now_s: float, aging_s: float) -> list[Entry]:
    """Return the waiting requests, the next one first.

    Args:
        entries: All requests of the pipeline.
        now_s: Current time, in seconds since the same point.
        aging_s: Time of waiting that raises the rank by one priority, in seconds.
    """

    def rank(entry: Entry) -> tuple[float, float, str]:
        waited_s = now_s - (now_s if entry.waiting_since_s is None else entry.waiting_since_s)
        return entry.priority - max(0.0, waited_s) // aging_s, entry.arrived_s, entry.name

    return sorted((entry for entry in entries if entry.waiting_since_s is not None), key=rank)


def starting(entries: Sequence[Entry], slots: int, now_s: float, aging_s: float) -> list[Entry]:
    """Return the waiting requests that get a slot now.

    Args:
        entries: All requests of the pipeline.
        slots: Number of slots.
        now_s: Current time, in seconds.
        aging_s: Time of waiting that raises the rank by one priority, in seconds.
    """
    free = slots - sum(entry.waiting_since_s is None for entry in entries)
    return waiting_in_order(entries, now_s, aging_s)[: max(0, free)]


def giving_way(entries: Sequence[Entry], slots: int, now_s: float, aging_s: float) -> list[Entry]:
    """Return the running requests that must give up their slots at their next steps.

    Args:
        entries: All requests of the pipeline.
        slots: Number of slots.
        now_s: Current time, in seconds.
        aging_s: Time of waiting that raises the rank by one priority, in seconds.
    """
    served = {entry.name for entry in starting(entries, slots, now_s, aging_s)}
    urgent = sorted(
        (entry for entry in entries if entry.waiting_since_s is not None and entry.name not in served),
        key=lambda entry: (entry.priority, entry.arrived_s, entry.name),
    )
    running = [
        entry
        for entry in entries
        if entry.waiting_since_s is None and entry.can_stop and entry.set_aside < MOST_SET_ASIDE
    ]
    running.sort(key=lambda entry: (-entry.priority, -entry.arrived_s, entry.name))
    return [victim for one, victim in zip(urgent, running, strict=False) if one.priority < victim.priority]

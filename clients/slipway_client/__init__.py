"""Typed clients of the served models.

>>> from slipway_client import Client, Progress, TextToVideoRequest, Video
>>> request = TextToVideoRequest(prompt="A serene lake at sunset", frames=17, width=64, height=64, steps=8)
>>> with Client("localhost:8001") as client:
...     for event in client.generate(request, timeout_s=600):
...         match event:
...             case Progress():
...                 print(f"step {event.step} of {event.steps}, {event.elapsed_s:.1f} s")
...             case Video():
...                 Path("out.mp4").write_bytes(event.data)

:class:`AsyncClient` is the same client for asyncio. Every error is a :class:`SlipwayError` of the class that
the server raised. Closing or dropping the iterator cancels the generation on the server.
"""

from slipway_client.aio import AsyncClient
from slipway_client.client import Client
from slipway_client.latest import Latest
from slipway_client.results import Frames, Video
from slipway_client.retry import RetryPolicy
from slipway_serving.families.wan_t2v.request import TextToVideoRequest
from slipway_serving.protocol.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidRequest,
    NotReady,
    Overloaded,
    SlipwayError,
    Unrecoverable,
)
from slipway_serving.protocol.events import Event, FramesPart, Progress, VideoPart
from slipway_serving.protocol.turns import Turn

__all__ = [
    "AsyncClient",
    "Cancelled",
    "Client",
    "DeadlineExceeded",
    "Event",
    "Frames",
    "FramesPart",
    "InvalidRequest",
    "Latest",
    "NotReady",
    "Overloaded",
    "Progress",
    "RetryPolicy",
    "SlipwayError",
    "TextToVideoRequest",
    "Turn",
    "Unrecoverable",
    "Video",
    "VideoPart",
]

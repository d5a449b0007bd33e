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

from slipway_client.async_client import AsyncClient
from slipway_client.client import Client
from slipway_client.results import Checkpoint, Frames, Moved, Video
from slipway_client.retry import NotTriton, RetryPolicy, UnknownModel
from slipway_client.sessions import AsyncSession, ClientSession
from slipway_client.states import continued_request, read_state_file, write_state
from slipway_client.turn_content import Latest
from slipway_serving.families.airimu.request import (
    CorrectionRequest,
    Corrections,
    CorrectionStreamRequest,
    CorrectionTurn,
)
from slipway_serving.families.framepack_i2v.request import ImageToVideoRequest
from slipway_serving.families.matrix_game.request import (
    BlockMade,
    GtaDriveActions,
    GtaDriveRequest,
    TempleRunActions,
    TempleRunRequest,
    UniversalActions,
    UniversalRequest,
)
from slipway_serving.families.wakeword.request import (
    ClipDecisions,
    ClipsRequest,
    ListenRequest,
    ListenTurn,
    StreamDecisions,
)
from slipway_serving.families.wan_t2v.request import TextToVideoRequest
from slipway_serving.protocol.diffusion.stopping import ContactSheet, Continued, StatePart, Stopped
from slipway_serving.protocol.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidRequest,
    Malformed,
    NotReady,
    Overloaded,
    SessionLost,
    SlipwayError,
    Unrecoverable,
)
from slipway_serving.protocol.events import Event, FramesPart, Picture, Progress, VideoPart
from slipway_serving.protocol.requests import Request
from slipway_serving.protocol.turns import Turn
from slipway_serving.video.fragments import Mp4Fragment
from slipway_serving.video.jpeg import JpegFrame

__all__ = [
    "AsyncClient",
    "AsyncSession",
    "BlockMade",
    "Cancelled",
    "Checkpoint",
    "Client",
    "ClientSession",
    "ClipDecisions",
    "ClipsRequest",
    "ContactSheet",
    "Continued",
    "CorrectionRequest",
    "CorrectionStreamRequest",
    "CorrectionTurn",
    "Corrections",
    "DeadlineExceeded",
    "Event",
    "Frames",
    "FramesPart",
    "GtaDriveActions",
    "GtaDriveRequest",
    "ImageToVideoRequest",
    "InvalidRequest",
    "JpegFrame",
    "Latest",
    "ListenRequest",
    "ListenTurn",
    "Malformed",
    "Moved",
    "Mp4Fragment",
    "NotReady",
    "NotTriton",
    "Overloaded",
    "Picture",
    "Progress",
    "Request",
    "RetryPolicy",
    "SessionLost",
    "SlipwayError",
    "StatePart",
    "Stopped",
    "StreamDecisions",
    "TempleRunActions",
    "TempleRunRequest",
    "TextToVideoRequest",
    "Turn",
    "UniversalActions",
    "UniversalRequest",
    "UnknownModel",
    "Unrecoverable",
    "Video",
    "VideoPart",
    "continued_request",
    "read_state_file",
    "write_state",
]

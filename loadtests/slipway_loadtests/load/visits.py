"""Visits of each model's users: one visit is one request, or one session with all its turns.

A visit is independent of Locust: it receives a client, and its times and data come from a seed. A visit
follows a video event by event and assembles it, so that an incomplete answer does not count as an answer. A
player watches a world's blocks one after the other at 25 frames a second and asks for the next block when the
display of the last one begins. A microphone and a sensor send half a second of sound or motion every half
second, whatever the server does.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np

from slipway_client.client import Client
from slipway_client.results import Assembler
from slipway_client.served_model import ServedModel
from slipway_client.sessions import ClientSession
from slipway_loadtests.load import payloads
from slipway_loadtests.load.outcomes import ANSWERED, Outcome, RequestObserver, now_s
from slipway_loadtests.load.plan import Plan
from slipway_serving.families.airimu.request import CorrectionRequest, CorrectionStreamRequest, CorrectionTurn
from slipway_serving.families.framepack_i2v.request import ImageToVideoRequest
from slipway_serving.families.matrix_game.keys import actions_of
from slipway_serving.families.matrix_game.request import REQUESTS, BlockMade
from slipway_serving.families.wakeword.request import SAMPLE_RATE_HZ, ClipsRequest, ListenRequest, ListenTurn
from slipway_serving.families.wan_t2v.request import TextToVideoRequest
from slipway_serving.protocol.errors import InvalidRequest, Unrecoverable
from slipway_serving.protocol.events import Event, Progress
from slipway_serving.protocol.fields import fields_of
from slipway_serving.protocol.requests import Request

R = TypeVar("R", bound=Request)
WORLD_FPS, BLOCK_FRAMES = 25, 12
PIECE_S = 0.5
_CLIP_S = 1.0
_BATCH, _BATCH_FRAMES = 8, 1000


@dataclass(frozen=True)
class Visitor:
    """One user of the server.

    Attributes:
        client: Connected client that does not retry.
        plan: Plan of the load test.
        random: Random generator for the data.
        keep: Callback that receives the outcome of each request.
        until_s: Time at which the load test ends, in seconds since the epoch; no turn begins after it.
        served: Description that the served model gives of itself.
    """

    client: Client
    plan: Plan
    random: np.random.Generator
    keep: Callable[[Outcome], None]
    until_s: float
    served: ServedModel = field(default_factory=partial(ServedModel, ""))

    def asked(self, request: type[R], **fields: Any) -> R:
        """Return a request with these fields, except those that the plan sets.

        For the other fields, the size for which the served model is tuned replaces the request's own default,
        which suits the public checkpoint only.

        Raises:
            InvalidRequest: The request has no such field, or a value breaks its rule.
        """
        stated = stated_values(self.plan, request, fields)
        usual = self.served.usual
        told = {each.name: each.kind(usual[each.name]) for each in fields_of(request) if each.name in usual}
        return request(**{**told, **stated})

    def data_seed(self) -> int:
        """Return the seed of one of the plan's pictures, sounds or motions."""
        return _data_seed(self.plan, self.random)

    def watch(self, model: str, due_s: float) -> RequestObserver:
        """Return a watch for one request."""
        return RequestObserver(model, due_s, self.keep)


def stated_values(plan: Plan, request: type[Request], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of a request with the values that the plan states.

    Args:
        plan: Plan of the load test.
        request: Class of the request.
        fields: Values of its fields for which the plan may state others.

    Raises:
        InvalidRequest: The plan names a field that the request does not have.
    """
    stated = plan.fields.get(request.model, {})
    known = {each.name for each in dataclasses.fields(request)}  # type: ignore[arg-type]
    if unknown := sorted(set(stated) - known):
        raise InvalidRequest(f"load: fields of {request.model} must be of {sorted(known)}, got {unknown}")
    return {**fields, **stated}


def _data_seed(plan: Plan, random: np.random.Generator) -> int:
    return plan.seed * payloads.SEEDS + int(random.integers(payloads.SEEDS))


def served_model(client: Client, model: str) -> ServedModel:
    """Return what a served model says about itself.

    Raises:
        SlipwayError: The server does not answer, or has no such model.
    """
    return ServedModel(model, client.model_parameters(model))


Visit = Callable[[Visitor, float], None]
"""Function that makes one visit, due at a time in seconds since the epoch."""
VideoFields = Callable[[Plan, np.random.Generator], tuple[type[Request], dict[str, Any]]]
"""Function that returns the request class of a video, and values of its fields."""


def follow(visitor: Visitor, due_s: float, request: Any) -> None:
    """Send a request and follow its events to the end, unless this user leaves after the first step."""
    plan, random = visitor.plan, visitor.random
    leaves = random.uniform() < plan.cancel_share
    with (
        visitor.watch(request.model, due_s) as watch,
        closing(visitor.client.stream(request, timeout_s=plan.timeout_s)) as events,
    ):
        whole = Assembler(request, request.model)
        for event in events:
            watch.see(event)
            if leaves and isinstance(event, Progress) and event.phase is None:
                watch.cancelled()
                return
            whole.add(event)
        whole.results()
        if (frames := getattr(request, "frames", 0)) and (fps := getattr(request, "fps", 0)):
            watch.note("real_time_factor", frames / fps / (now_s() - due_s))


def text_video(_: Plan, random: np.random.Generator) -> tuple[type[Request], dict[str, Any]]:
    """Return the request class of a video from a text, and values of its fields."""
    seed = int(random.integers(2**31))
    return TextToVideoRequest, {"prompt": payloads.prompt(random), "seed": seed}


def image_video(plan: Plan, random: np.random.Generator) -> tuple[type[Request], dict[str, Any]]:
    """Return the request class of a video from a picture and a text, and values of its fields."""
    shown, seed = _data_seed(plan, random), int(random.integers(2**31))
    return ImageToVideoRequest, {
        "image": payloads.picture(shown),
        "prompt": payloads.said(shown),
        "seed": seed,
    }


def text_to_video(visitor: Visitor, due_s: float) -> None:
    """Generate a video from a text."""
    request, fields = text_video(visitor.plan, visitor.random)
    follow(visitor, due_s, visitor.asked(request, **fields))


def image_to_video(visitor: Visitor, due_s: float) -> None:
    """Generate a video from a picture and a text."""
    request, fields = image_video(visitor.plan, visitor.random)
    follow(visitor, due_s, visitor.asked(request, **fields))


def world(visitor: Visitor, due_s: float, mode: str) -> None:
    """Play a world for the length of a session."""
    opening = visitor.asked(
        REQUESTS[mode],
        image=payloads.land(visitor.data_seed(), mode),
        seed=int(visitor.random.integers(2**31)),
        fps=WORLD_FPS,
    )
    begun_s = now_s()
    with visitor.client.session(opening) as session:
        player = _Player(visitor, session, opening.turn)
        # The first block is due when the visit begins. Each later block is due when the display of the block
        # before it begins.
        while player.block(due_s, actions_of(payloads.keys(visitor.random, mode), mode)):
            due_s = player.shown_until_s - player.block_s if visitor.plan.paced else now_s()
            if due_s >= min(begun_s + visitor.plan.session_s, visitor.until_s):
                return
            time.sleep(max(due_s - now_s(), 0.0))


class _Player:
    """Shows blocks one after the other, at the world's frame rate."""

    def __init__(self, visitor: Visitor, session: ClientSession, turn: Any) -> None:
        self._visitor, self._session, self._turn = visitor, session, turn
        self._frames = 0
        self._came_s: float | None = None
        self.shown_until_s = self.block_s = 0.0

    def block(self, due_s: float, actions: Mapping[str, Any]) -> bool:
        """Request a block and show it; return whether another can follow."""
        made: BlockMade | None = None
        model = self._turn.model
        limit_s = self._visitor.plan.timeout_s
        with self._visitor.watch(model, due_s) as watch:
            for event in self._session.step(self._turn(**actions), timeout_s=limit_s):
                if isinstance(event, BlockMade):
                    made = event
                else:
                    watch.see(event)
            if made is None:
                raise Unrecoverable(f"{model}: a block must end with its account, got none")
            self._show(watch, made, now_s() - due_s)
        return made is not None and made.frames_left > 0

    def _show(self, watch: RequestObserver, made: BlockMade, latency_s: float) -> None:
        came_s, before_s = now_s(), self.block_s
        self.block_s = (made.frames_made - self._frames) / WORLD_FPS
        self._frames = made.frames_made
        watch.took(made.denoise_s + made.decode_s + made.commit_s + (made.picture_s or 0.0))
        watch.note("real_time_factor", self.block_s / latency_s)
        if self._came_s is not None:
            watch.note("jitter_s", abs(came_s - self._came_s - before_s))
            watch.note("stall_s", max(came_s - self.shown_until_s, 0.0))
        self._came_s = came_s
        self.shown_until_s = max(self.shown_until_s, came_s) + self.block_s


def wakeword_clips(visitor: Visitor, due_s: float) -> None:
    """Send one clip to the wake word model."""
    audio = payloads.speech(visitor.data_seed(), _CLIP_S, SAMPLE_RATE_HZ)
    rate = np.array([[SAMPLE_RATE_HZ]], np.int64)
    _answered_once(visitor, due_s, visitor.asked(ClipsRequest, audio=audio[None], sample_rate=rate), _CLIP_S)


def imu_batches(visitor: Visitor, due_s: float) -> None:
    """Send a batch of motion recordings for correction."""
    recordings = payloads.motion(visitor.data_seed(), _BATCH, _BATCH_FRAMES)
    length_s = _BATCH * _BATCH_FRAMES / payloads.IMU_HZ
    _answered_once(visitor, due_s, visitor.asked(CorrectionRequest, **recordings), length_s)


def _answered_once(visitor: Visitor, due_s: float, request: Request, length_s: float) -> None:
    """Send a request that has one answer.

    Args:
        visitor: User that sends the request.
        due_s: Time at which the request was due, in seconds since the epoch.
        request: Request to send.
        length_s: Length of the sound or motion in the request, in seconds.
    """
    with visitor.watch(request.model, due_s) as watch:
        for _ in visitor.client.generate(request, timeout_s=visitor.plan.timeout_s):
            pass
        watch.note("real_time_factor", length_s / (now_s() - due_s))


def wakeword_stream(visitor: Visitor, due_s: float) -> None:
    """Stream sound from an open microphone for the length of a session."""

    def piece() -> Request:
        samples = payloads.speech(visitor.data_seed(), PIECE_S, SAMPLE_RATE_HZ)
        return ListenTurn((32_767 * samples).astype(np.int16)[None])

    _stream(visitor, due_s, visitor.asked(ListenRequest), piece)


def imu_stream(visitor: Visitor, due_s: float) -> None:
    """Stream motion from a worn sensor for the length of a session."""

    def piece() -> Request:
        return CorrectionTurn(**payloads.motion(visitor.data_seed(), 1, round(PIECE_S * payloads.IMU_HZ)))

    _stream(visitor, due_s, visitor.asked(CorrectionStreamRequest), piece)


def _stream(visitor: Visitor, due_s: float, opening: Request, piece: Callable[[], Request]) -> None:
    """Send each piece at the end of the time that it covers, late or not, unless the plan is not paced."""
    plan = visitor.plan
    pieces = max(round(plan.session_s / PIECE_S), 1)
    with visitor.client.session(opening) as session:
        for number in range(1, pieces + 1):
            turn = piece()
            piece_due_s = due_s + number * PIECE_S if plan.paced else now_s()
            time.sleep(max(piece_due_s - now_s(), 0.0))
            last = number == pieces or piece_due_s + PIECE_S >= visitor.until_s
            with visitor.watch(opening.model, piece_due_s) as watch:
                events: list[Event] = list(session.step(turn, last=last, timeout_s=plan.timeout_s))
                if not events:
                    raise Unrecoverable(f"{opening.model}: a piece must be answered, got nothing")
                watch.note("real_time_factor", PIECE_S / (now_s() - piece_due_s))
            if last or watch.outcome is None or watch.outcome.ended != ANSWERED:
                return


@dataclass(frozen=True)
class Use:
    """How the load test uses a model.

    Attributes:
        model: Name of the served model.
        family: Family of the model.
        user: Name of the Locust user.
        visit: Function that makes one visit.
        turn_s: Length of world, sound or motion in each turn of a session, in seconds; None if a visit is one
            request.
        video: Function that returns the fields of a video, for users of a gateway; None for other models.
        without_pace: True if a visit is a session whose turns follow one another, since nothing tells how
            long a turn lasts.
    """

    model: str
    family: str
    user: str
    visit: Visit
    turn_s: float | None = None
    video: VideoFields | None = None
    without_pace: bool = False

    @property
    def gateway_user(self) -> str:
        """Name of the Locust user that calls a gateway."""
        return f"{self.user}ByGateway"


_WORLDS = {"universal": "UniversalWorld", "gta_drive": "GtaDriveWorld", "templerun": "TempleRunWorld"}
USES = (
    Use("wan_t2v", "wan_t2v", "TextToVideo", text_to_video, video=text_video),
    Use("framepack_i2v", "framepack_i2v", "ImageToVideo", image_to_video, video=image_video),
    *(
        Use(REQUESTS[mode].model, "matrix_game", user, partial(world, mode=mode), BLOCK_FRAMES / WORLD_FPS)
        for mode, user in _WORLDS.items()
    ),
    Use("wakeword", "wakeword", "WakewordClips", wakeword_clips),
    Use("wakeword_stream", "wakeword", "WakewordStream", wakeword_stream, PIECE_S),
    Use("airimu", "airimu", "ImuBatches", imu_batches),
    Use("airimu_stream", "airimu", "ImuStream", imu_stream, PIECE_S),
)
"""Uses with the contents and the pace of real users; `uses.py` has those of all other models."""

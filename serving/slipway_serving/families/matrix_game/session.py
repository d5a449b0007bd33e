"""The program matrix_game_<mode>: each turn of a world carries a block's actions and returns its frames.

The first turn also carries a picture, which the served encoders process; everything else of a world is
computed and kept in this instance. Frames are sent as they are decoded, before the pass that the next block
depends on. A refused turn leaves its world unchanged; a turn that fails or is cancelled ends it. A snapshot
returns the state of a world part by part, and a restore begins a world from these parts.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch

from slipway_serving.families.matrix_game import snapshot
from slipway_serving.families.matrix_game.actions import Rows
from slipway_serving.families.matrix_game.facts import Facts
from slipway_serving.families.matrix_game.picture import crop_and_resize, to_encoder_input
from slipway_serving.families.matrix_game.request import (
    OUTPUTS,
    REQUESTS,
    BlockMade,
    WorldRequest,
    actions_of,
    row_problems,
)
from slipway_serving.families.matrix_game.world import Networks, World
from slipway_serving.protocol import images
from slipway_serving.protocol.errors import InvalidRequest, raise_all
from slipway_serving.protocol.events import BASE64, Event, tensors
from slipway_serving.protocol.requests import decode_alternative, decode_turn
from slipway_serving.protocol.snapshots.parts import digest_of
from slipway_serving.protocol.video.fields import MAX_FPS
from slipway_serving.runtime.interruption import Interruption
from slipway_serving.runtime.metrics import BLOCK, BLOCKS_LATE, DENOISE_STEP, FIRST_FRAME, FRAMES, WORLDS
from slipway_serving.runtime.program import Call, Responses, Settings
from slipway_serving.runtime.sessions import TurnState
from slipway_serving.runtime.snapshots.sessions import RestorableSessions, StateContent
from slipway_serving.runtime.snapshots.states import SnapshotFormat
from slipway_serving.video.delivery import frame_parts
from slipway_serving.video.fragments import mp4_fragment
from slipway_serving.video.frames import Frames
from slipway_serving.video.jpeg import jpeg_frames


@dataclass(frozen=True)
class OpenWorld:
    """State of an open session.

    Attributes:
        world: World of the session.
        output: Form of its frames, see :data:`slipway_serving.families.matrix_game.request.OUTPUTS`.
        fps: Frames per second at which they are shown; 0 if that is not known.
        name: Unique name of the session.
        picture_s: Time for the first picture, in seconds; None after the first turn.
    """

    world: World
    output: str
    fps: int
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    picture_s: float | None = None


class MatrixGame:
    """Program that answers the turns of worlds, one turn at a time.

    A :class:`WorldRequest` of the mode opens a session; :mod:`slipway_serving.families.matrix_game.request`
    describes the turns and their answers.
    """

    reports_requests = True

    def __init__(self, settings: Settings) -> None:
        # The schedule needs little compute, so the cores are left to the graphs.
        torch.set_num_threads(1)
        self._model = settings.model
        self._facts = Facts.read(settings.folder)
        self._request: type[WorldRequest] = REQUESTS[self._facts.mode]
        self._networks = Networks(settings, self._facts)
        self._networks.warm()
        self._settings = settings
        self._sessions = RestorableSessions(settings, self._snapshots, self._pack)
        self._recorder = settings.recorder
        self._recorder.declare(DENOISE_STEP, FRAMES, *WORLDS)

    def run(self, call: Call) -> Responses:
        """Yield the events of one turn.

        Raises:
            InvalidRequest: A field or the session's turn breaks a rule, or the world has ended.
            Overloaded: Too many sessions are open.
            Cancelled: The caller cancelled.
            DeadlineExceeded: The time limit was exceeded.
            Unrecoverable: The graphs returned non-finite values.
        """
        self._sessions.open_sessions.check_id(call.turn, fix="a unique id for each world")
        if call.turn.end and not call.tensors:
            self._sessions.open_sessions.drop(call.turn)
            return
        other = decode_alternative(self._request, call.tensors, self._model)
        if other is None:
            yield from self._block(call)
        else:
            yield tensors(self._sessions.answer(other, call.turn))

    def close(self) -> None:
        """Free all worlds."""
        self._sessions.open_sessions.close()

    def _block(self, call: Call) -> Responses:
        """Yield the events of the next block."""
        opening, steering = decode_turn(self._request, call.tensors, self._model, call.turn)
        block_actions = actions_of(steering)
        raise_all(self._model, row_problems(block_actions, self._facts.block_frames(first=call.turn.start)))
        self._sessions.open_sessions.check_id_is_new(call.turn)
        interruption = Interruption(self._model, call.is_cancelled, call.limit_s)

        def check(open_world: OpenWorld) -> None:
            self._check_position(open_world.world, steering.rebase)

        with self._sessions.turn(
            call.turn, lambda: self._open_world(opening, call, interruption), check
        ) as session:
            if steering.rebase:
                world = self._networks.rebase(session.state.world)
                session.state = replace(session.state, world=world)
            for event in self._events(session, block_actions, interruption):
                yield tensors(event)

    def _pack(self, open_world: OpenWorld) -> StateContent:
        values = snapshot.scalars(open_world.world) | {"output": open_world.output, "fps": open_world.fps}
        return StateContent(
            f"{open_world.name}-{open_world.world.blocks}", values, snapshot.array_reader(open_world.world)
        )

    def _snapshots(self) -> SnapshotFormat[OpenWorld]:
        """Describe the snapshots of this model's worlds and how to restore a world from them."""
        folder, facts, networks = self._settings.folder, self._facts, self._networks
        models = (folder.parent, self._settings.repository / facts.models.vae_decoder)
        specs = snapshot.array_specs(facts, networks)

        def unpack(values: Mapping[str, Any], arrays: snapshot.Arrays) -> OpenWorld:
            output, fps = values.get("output"), values.get("fps")
            if output not in OUTPUTS or type(fps) is not int or not 0 <= fps <= MAX_FPS:
                raise InvalidRequest(
                    f"{self._model}: restore must contain the output and fps of a session, got {output!r}"
                    f" and {fps!r}"
                )
            world = snapshot.restore_world(values, arrays, facts, networks, self._model)
            return OpenWorld(world, str(output), fps)

        return SnapshotFormat(self._model, digest_of(models, folder.name), specs, unpack)

    def _open_world(self, opening: WorldRequest | None, call: Call, interruption: Interruption) -> OpenWorld:
        """Encode the first picture and begin the world of a new session."""
        if opening is None:
            raise InvalidRequest(
                f"{self._model}: image must be given in the first turn of a session, got nothing"
            )
        began_s = interruption.elapsed_s()
        image = {
            "image": to_encoder_input(crop_and_resize(images.pixels(opening.image), self._facts.picture_px))
        }
        models = self._facts.models
        interruption.check("before the first picture is encoded")
        context = call.models.call(models.image_encoder, image, ["visual_context"])["visual_context"]
        interruption.check("before the first picture's latents")
        picture = call.models.call(models.vae_encoder, image, ["latents"])["latents"]
        world = self._networks.begin(picture, context, opening.seed)
        return OpenWorld(world, opening.output, opening.fps, picture_s=interruption.elapsed_s() - began_s)

    def _check_position(self, world: World, rebase: bool) -> None:
        """Refuse a block beyond the last place, and a rebase that comes too early."""
        facts, block = self._facts, self._facts.latents.block_frames
        earliest = facts.rebased_position
        if rebase and world.position <= earliest:
            raise InvalidRequest(
                f"{self._model}: rebase must be requested only after block {earliest // block}, got it after"
                f" block {world.position // block}; try without rebase"
            )
        if not rebase and world.position + block > facts.latents.positions:
            raise InvalidRequest(
                f"{self._model}: block must be at most {facts.blocks}, the last block of the world, got"
                f" {world.position // block + 1} after {facts.frames(world.blocks)} frames; try rebase"
            )

    def _events(
        self, session: TurnState[OpenWorld], block_actions: Rows, interruption: Interruption
    ) -> Iterator[Event]:
        """Generate a block; yield its frames as they are decoded, then its report."""
        open_world, networks = session.state, self._networks
        world, times = open_world.world, [interruption.elapsed_s()]
        block = networks.denoise(world, block_actions, interruption, self._recorder)
        times.append(interruption.elapsed_s())
        first_frame = self._facts.frames(world.blocks)
        for frames, decoder in networks.decode(world, block, interruption):
            if world.decoder is None:
                self._recorder.observe(FIRST_FRAME, interruption.elapsed_s())
            world = replace(world, decoder=decoder)
            self._recorder.count(FRAMES, len(frames))
            yield from self._parts(open_world, frames, first_frame, interruption)
            first_frame += len(frames)
        times.append(interruption.elapsed_s())
        interruption.check("before the block is committed")
        world = networks.commit(world, block)
        times.append(interruption.elapsed_s())
        session.state = replace(open_world, world=world, picture_s=None)
        denoise_s, decode_s, commit_s = (after - before for before, after in pairwise(times))
        parts = {
            "picture": open_world.picture_s,
            "denoise": denoise_s,
            "decode": decode_s,
            "commit": commit_s,
        }
        for part, took_s in parts.items():
            if took_s is not None:
                self._recorder.observe(BLOCK, took_s, part)
        block_frames = self._facts.block_frames(first=world.blocks == 1)
        if is_late(times[-1], block_frames, open_world.fps):
            self._recorder.count(BLOCKS_LATE)
        frames_left = self._facts.frames_left(world.position)
        yield BlockMade(
            world.blocks - 1, first_frame, frames_left, denoise_s, decode_s, commit_s, open_world.picture_s
        )

    def _parts(
        self, open_world: OpenWorld, frames: Frames, first_frame: int, interruption: Interruption
    ) -> Iterator[Event]:
        """Return the events that carry a latent frame's frames in the requested form."""
        form, as_text = open_world.output.removesuffix(BASE64), open_world.output.endswith(BASE64)
        if form == "jpeg":
            return jpeg_frames(frames, first_frame, interruption, as_text=as_text)
        if form == "mp4":
            # The world's first latent frame decodes to one frame, so the number is rounded up.
            number = -(-first_frame // self._facts.frames_per_latent)
            return iter(
                [mp4_fragment(frames, first_frame, number, open_world.fps, interruption, as_text=as_text)]
            )
        return frame_parts(frames, first_frame, interruption, as_text=as_text)


def is_late(took_s: float, frames: int, fps: int) -> bool:
    """Return True if a block took longer than its frames last at a rate; 0 means no rate."""
    return fps > 0 and took_s > frames / fps

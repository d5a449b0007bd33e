"""The same videos through the gateway and directly by gRPC, in turn.

Both callers wait for the same two moments: the notice of the first finished step, and the last byte of the
MP4 file. The direct caller asks for previews, which the gateway's events contain, too. The gateway stores
states besides, and writes the settings into the file; its callers wait for that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx
from httpx_sse import EventSource

from slipway_benchmarks.stats import Summary, ratios, summarize
from slipway_client import Client, Progress, TextToVideoRequest, Video
from slipway_serving.protocol.errors import Unrecoverable

FINISHED = "video.completed"


@dataclass(frozen=True)
class TimedVideo:
    """Times of one video as its caller sees them.

    Attributes:
        first_progress_s: Time from sending the request to the notice of its first finished step, in seconds.
        last_progress_s: Time to the notice of its last finished step, in seconds.
        finished_s: Time to the last byte of the file, in seconds.
    """

    first_progress_s: float
    last_progress_s: float
    finished_s: float


@dataclass(frozen=True)
class PairsFound:
    """Videos through the gateway beside direct ones.

    Attributes:
        finished_ratio: Time to the finished video, gateway ÷ direct, by pair.
        progress_ratio: Time to the first progress, gateway ÷ direct, by pair.
        finished_added_s: Time to the finished video, gateway less direct, by pair, in seconds.
        progress_added_s: Time to the first progress, gateway less direct, by pair, in seconds.
        after_steps_added_s: Time from the last step to the finished video, gateway less direct, by pair, in
            seconds.
        direct_s: Time to the finished video, direct, by pair, in seconds.
        direct_progress_s: Time to the first progress, direct, by pair, in seconds.
        gateway_cpu_s: CPU time of the gateway's process for a video, by pair, in seconds.
    """

    finished_ratio: Summary
    progress_ratio: Summary
    finished_added_s: Summary
    progress_added_s: Summary
    after_steps_added_s: Summary
    direct_s: Summary
    direct_progress_s: Summary
    gateway_cpu_s: Summary


def direct_video(client: Client, request: TextToVideoRequest) -> TimedVideo:
    """Make a video by gRPC.

    Raises:
        Unrecoverable: The server reported no step, or sent no file.
    """
    sent_s = time.perf_counter()
    steps_s: list[float] = []
    video = None
    for event in client.generate(replace(request, preview=True, output="video")):
        if isinstance(event, Progress) and event.phase is None:
            steps_s.append(time.perf_counter() - sent_s)
        elif isinstance(event, Video):
            video = event
    finished_s = time.perf_counter() - sent_s
    if video is None or not steps_s:
        raise Unrecoverable("bench: a direct video must report its steps and end with a file")
    return TimedVideo(steps_s[0], steps_s[-1], finished_s)


def gateway_video(http: httpx.Client, request: TextToVideoRequest) -> TimedVideo:
    """Make a video through the gateway: create it, follow its events, download it.

    Args:
        http: Client of the gateway.
        request: Request of the served model.

    Raises:
        Unrecoverable: The job failed, or its events reported no step.
    """
    sent_s = time.perf_counter()
    created = http.post("/v1/videos", json=fields_of_video(request))
    if not created.is_success:
        raise Unrecoverable(f"bench: the gateway must create the video, got {created.text[:500]}")
    video_id = created.json()["id"]
    steps_s: list[float] = []
    done = 0
    for name, job in _events(http, video_id):
        if job.get("step", 0) > done:
            done = job["step"]
            steps_s.append(time.perf_counter() - sent_s)
        if name == FINISHED:
            break
    else:
        raise Unrecoverable(
            f"bench: the video must be completed, got {http.get(f'/v1/videos/{video_id}').text}"
        )
    http.get(f"/v1/videos/{video_id}/content").raise_for_status()
    return TimedVideo(steps_s[0], steps_s[-1], time.perf_counter() - sent_s)


def _events(http: httpx.Client, video_id: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and content of each event of a job."""
    with http.stream("GET", f"/v1/videos/{video_id}/events") as answer:
        for event in EventSource(answer).iter_sse():
            if event.data:  # httpx-sse yields comments, which keep the connection alive, after an id.
                yield event.event, event.json()


def fields_of_video(request: TextToVideoRequest) -> dict[str, Any]:
    """Return the fields of the gateway's API for a request."""
    return {
        "model": request.model,
        "prompt": request.prompt,
        "size": f"{request.width}x{request.height}",
        "num_frames": request.frames,
        "steps": request.steps,
        "seed": request.seed,
    }


def compare_videos(
    direct: Callable[[TextToVideoRequest], TimedVideo],
    through: Callable[[TextToVideoRequest], TimedVideo],
    cpu_s: Callable[[], float],
    request: TextToVideoRequest,
    pairs: int,
    report: Callable[[str], None],
) -> PairsFound:
    """Make videos in pairs; the order alternates, so that neither side always comes second.

    Args:
        direct: Function that makes a video by gRPC.
        through: Function that makes a video through the gateway.
        cpu_s: Function that returns the CPU time of the gateway so far, in seconds.
        request: Request for the first pair; the next ones count its seed up.
        pairs: Number of pairs.
        report: Callback that receives a line before each pair.
    """
    by_grpc: list[TimedVideo] = []
    by_gateway: list[TimedVideo] = []
    used_s: list[float] = []

    def make_through(asked: TextToVideoRequest) -> None:
        before_s = cpu_s()
        by_gateway.append(through(asked))
        used_s.append(cpu_s() - before_s)

    for number in range(pairs):
        report(f"videos: pair {number + 1} of {pairs}")
        asked = replace(request, seed=request.seed + number)
        if number % 2:
            make_through(asked)
        by_grpc.append(direct(asked))
        if not number % 2:
            make_through(asked)
    return pairs_found(by_grpc, by_gateway, used_s)


def pairs_found(
    direct: Sequence[TimedVideo], through: Sequence[TimedVideo], cpu_s: Sequence[float]
) -> PairsFound:
    """Return the figures of videos in pairs.

    Args:
        direct: Videos by gRPC.
        through: Videos through the gateway.
        cpu_s: CPU time of the gateway for each video, in seconds.
    """
    both = list(zip(direct, through, strict=True))
    return PairsFound(
        summarize(ratios([each.finished_s for each in through], [each.finished_s for each in direct])),
        summarize(
            ratios([each.first_progress_s for each in through], [each.first_progress_s for each in direct])
        ),
        summarize([other.finished_s - own.finished_s for own, other in both]),
        summarize([other.first_progress_s - own.first_progress_s for own, other in both]),
        summarize([_after_steps_s(other) - _after_steps_s(own) for own, other in both]),
        summarize([each.finished_s for each in direct]),
        summarize([each.first_progress_s for each in direct]),
        summarize(cpu_s),
    )


def _after_steps_s(video: TimedVideo) -> float:
    return video.finished_s - video.last_progress_s

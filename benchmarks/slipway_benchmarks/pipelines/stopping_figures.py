"""Figures of the stopping benchmark, computed from the times of its videos and the memory between them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slipway_benchmarks.pipelines.step_times import denoise_ms
from slipway_benchmarks.pipelines.watched_videos import WatchedVideo
from slipway_benchmarks.stats import Line, Summary, fit_line, ratios, summarize

Memory = Sequence[tuple[int, int]]
"""Memory of the pipeline's instances and of all processes of the server, in bytes, reading by reading."""


@dataclass(frozen=True)
class DraftsFound:
    """Drafts, of which some are continued, beside whole videos.

    Attributes:
        ratio: Time of all drafts and continuations ÷ time of all whole videos.
        steps_ratio: The same ratio of the times of the steps alone, without prompts and decoding.
        cpu_ratio: The ratio of the CPU times of the server, which other work on the machine hardly changes.
        draft_ratio: Time of a draft ÷ time of the whole video beside it, by video.
        continued_ratio: Time of a continuation ÷ time of the whole video beside it, by continued video.
        whole_s: Time of a whole video, by video, in seconds.
    """

    ratio: float
    steps_ratio: float
    cpu_ratio: float
    draft_ratio: Summary
    continued_ratio: Summary
    whole_s: Summary


@dataclass(frozen=True)
class CheckpointsFound:
    """The denoising loop with checkpoints beside the same loop without.

    Attributes:
        ratio: Time from the first to the last step with checkpoints ÷ without, by run.
        cpu_ratio: CPU time of the server for a whole video with checkpoints ÷ without, by run.
        step_ratio: Time of the step after a checkpoint, while the state is serialized and sent, ÷ mean time
            of the steps before and after that step, by checkpoint. Other load hurts both sides alike.
        plain_ratio: The same ratio at the same steps of the videos without checkpoints, for comparison.
        step_s: Median time of a step without checkpoints, by run, in seconds.
        state_bytes: Size of a state.
    """

    ratio: Summary
    cpu_ratio: Summary
    step_ratio: Summary
    plain_ratio: Summary
    step_s: Summary
    state_bytes: int


@dataclass(frozen=True)
class Growth:
    """Anonymous and shared memory of processes from request to request.

    Attributes:
        read_bytes: Memory before the first request and after each one.
        line: Line through the memory over the number of requests.
    """

    read_bytes: tuple[int, ...]
    line: Line

    @classmethod
    def of(cls, read_bytes: Sequence[int]) -> Growth:
        """Return the growth of memory that was read before the first request and after each one."""
        return cls(tuple(read_bytes), fit_line(range(len(read_bytes)), read_bytes))


@dataclass(frozen=True)
class StopsFound:
    """Stops and continuations, one after the other.

    Attributes:
        stop_s: Time from the last step's notice to the notice of the stop, in seconds.
        continue_s: Time from sending a state to the notice of the next step, in seconds.
        step_s: Time of the step after that one, in seconds.
        added_s: `continue_s` less `step_s` of the same request, in seconds.
        pipeline: Memory of the pipeline's instances.
        server: Memory of all processes of the server.
        plain_pipeline: Memory of the pipeline's instances while as many videos were made without a stop.
        plain_server: Memory of all processes of the server meanwhile.
    """

    stop_s: Summary
    continue_s: Summary
    step_s: Summary
    added_s: Summary
    pipeline: Growth
    server: Growth
    plain_pipeline: Growth
    plain_server: Growth


def drafts_found(
    drafts: Sequence[WatchedVideo], continued: Mapping[int, WatchedVideo], wholes: Sequence[WatchedVideo]
) -> DraftsFound:
    """Return the figures of drafts beside whole videos.

    Args:
        drafts: Drafts, by number.
        continued: Continuations by the number of their draft.
        wholes: Whole videos, by number.
    """
    stopped = [*drafts, *continued.values()]
    return DraftsFound(
        ratio=sum(each.whole_s for each in stopped) / sum(each.whole_s for each in wholes),
        steps_ratio=sum(map(_steps_s, stopped)) / sum(map(_steps_s, wholes)),
        cpu_ratio=sum(each.cpu_s for each in stopped) / sum(each.cpu_s for each in wholes),
        draft_ratio=summarize(ratios([each.whole_s for each in drafts], [each.whole_s for each in wholes])),
        continued_ratio=summarize(
            [each.whole_s / wholes[number].whole_s for number, each in continued.items()]
        ),
        whole_s=summarize([each.whole_s for each in wholes]),
    )


def _steps_s(video: WatchedVideo) -> float:
    return denoise_ms(video.step_ends_s) / 1000


def checkpoints_found(
    plain: Sequence[WatchedVideo], checked: Sequence[WatchedVideo], every: int, state_bytes: int
) -> CheckpointsFound:
    """Return the figures of videos with checkpoints beside videos without.

    Args:
        plain: Videos without checkpoints, by run.
        checked: Videos with checkpoints, by run.
        every: Number of steps between two checkpoints.
        state_bytes: Size of a state.
    """
    return CheckpointsFound(
        ratio=summarize(
            ratios([each.between_steps_s for each in checked], [each.between_steps_s for each in plain])
        ),
        cpu_ratio=summarize(ratios([each.cpu_s for each in checked], [each.cpu_s for each in plain])),
        step_ratio=summarize([ratio for each in checked for ratio in step_ratios(each, every)]),
        plain_ratio=summarize([ratio for each in plain for ratio in step_ratios(each, every)]),
        step_s=summarize([statistics.median(each.steps_s) for each in plain]),
        state_bytes=state_bytes,
    )


def step_ratios(video: WatchedVideo, every: int) -> list[float]:
    """Return the time of the step after each checkpoint ÷ the mean time of the steps around that step.

    Args:
        video: Whole video.
        every: Number of steps between two checkpoints, at least 2.
    """
    # The first item is the time of step 2.
    steps_s, last = video.steps_s, len(video.step_ends_s)
    return [
        2 * steps_s[step - 1] / (steps_s[step - 2] + steps_s[step]) for step in range(every, last - 1, every)
    ]


def stops_found(videos: Sequence[WatchedVideo], stopped: Memory, plain: Memory) -> StopsFound:
    """Return the figures of continuations that were stopped again.

    Args:
        videos: Continuations of at least two steps each.
        stopped: Memory before the first continuation and after each.
        plain: Memory before the first video without a stop and after each.
    """
    return StopsFound(
        stop_s=summarize([each.after_steps_s for each in videos]),
        continue_s=summarize([each.first_step_s for each in videos]),
        step_s=summarize([each.steps_s[0] for each in videos]),
        added_s=summarize([each.first_step_s - each.steps_s[0] for each in videos]),
        pipeline=Growth.of([pipeline for pipeline, _ in stopped]),
        server=Growth.of([server for _, server in stopped]),
        plain_pipeline=Growth.of([pipeline for pipeline, _ in plain]),
        plain_server=Growth.of([server for _, server in plain]),
    )

"""Charts of the benchmarks as PNG files, drawn without a display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from slipway_loadtests.figure import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from slipway_benchmarks.denoiser.benchmark import DenoiserResult
    from slipway_benchmarks.engines.benchmark import EnginesResult
    from slipway_benchmarks.gateway.benchmark import GatewayResult
    from slipway_benchmarks.pipelines.stopping import StoppingResult
    from slipway_benchmarks.pipelines.video import VideoResult
    from slipway_benchmarks.pipelines.world import WorldResult
    from slipway_benchmarks.quality.benchmark import Example, MeaningResult
    from slipway_benchmarks.servers.backends import BackendsResult
    from slipway_benchmarks.servers.wakeword import WakewordResult
    from slipway_benchmarks.stats import Summary

_GAP_PX = 3
_EXAMPLE_FRAMES = 9


def draw_denoiser(result: DenoiserResult, path: Path) -> None:
    """Draw speed, quality and, if measured, memory of the denoiser benchmark."""
    curves = {name: found.memory for name, found in result.measured.items() if found.memory}
    figure, panels = new_figure(3 if curves else 2)
    speeds = {name: found.call_ratio for name, found in result.measured.items()}
    _bars(panels[0], speeds, "PyTorch eager ÷ it, one call (bar: median, line: min to max)")
    panels[0].axvline(1.0, color="black", linewidth=0.8)
    _quality_bars(panels[1], result)
    if curves:
        for name, curve in curves.items():
            points = [(point.tokens, point.peak_mib) for point in curve.points]
            panels[2].plot(*zip(*points, strict=True) if points else ([], []), marker="o", label=name)
        panels[2].set(title="peak memory of one call", xlabel="tokens", ylabel="MiB")
        panels[2].set_ylim(bottom=0)
        panels[2].legend()
    figure.suptitle(result.options.case.name)
    figure.savefig(path)


def draw_engines(result: EnginesResult, path: Path) -> None:
    """Draw the engine benchmark: speed of a step, memory of a process."""
    figure, panels = new_figure(2)
    speeds = {name: served.ratio for name, served in result.served.items()}
    _bars(panels[0], speeds, "PyTorch eager ÷ it, one step (bar: median, line: min to max)")
    panels[0].axvline(1.0, color="black", linewidth=0.8)
    peaks = {name: served.memory.peak_mib for name, served in result.served.items() if served.memory}
    bars = panels[1].barh(list(peaks), list(peaks.values()), color="tab:green")
    panels[1].bar_label(bars, fmt="%.0f", label_type="center", color="white")
    panels[1].invert_yaxis()
    panels[1].set_title("peak memory of a process that serves it, MiB", fontsize="medium")
    figure.suptitle(f"{result.options.component} of {result.options.family}, {result.options.checkpoint}")
    figure.savefig(path)


def draw_video(result: VideoResult, path: Path) -> None:
    """Draw the video benchmark: time of a video, memory of decoding."""
    peaks_mib = result.peak_memory_mib
    figure, panels = new_figure(2 if peaks_mib else 1)
    speeds = {name: subject.ratio for name, subject in result.subjects.items()}
    _bars(panels[0], speeds, f"{next(iter(speeds))} ÷ it, one video (bar: median, line: min to max)")
    panels[0].axvline(1.0, color="black", linewidth=0.8)
    if peaks_mib:
        panels[1].plot(list(peaks_mib), list(peaks_mib.values()), marker="o")
        panels[1].set(title="peak memory of decoding", xlabel="latent frames", ylabel="MiB")
        panels[1].set_ylim(bottom=0)
    figure.savefig(path)


def draw_wakeword(result: WakewordResult, path: Path) -> None:
    """Draw the wake-word benchmark: requests per second of each server, for each kind of request."""
    figure, panels = new_figure(len(result.served))
    for axes, (kind, servers) in zip(panels, result.served.items(), strict=True):
        rates = {name: served.per_s for name, served in servers.items()}
        _bars(axes, rates, f"{kind}: requests per second, {result.options.clients} clients")
    figure.savefig(path)


def draw_backends(result: BackendsResult, path: Path) -> None:
    """Draw the benchmark of backends: the ratio of each case."""
    figure, (axes,) = new_figure(1)
    _bars(
        axes, {name: case.ratio for name, case in result.cases.items()}, "answers per second, native ÷ python"
    )
    axes.axvline(1.0, color="black", linewidth=0.8)
    figure.savefig(path)


def draw_world(result: WorldResult, path: Path) -> None:
    """Draw the ratios of the world benchmark."""
    figure, (axes,) = new_figure(1)
    found = {
        "late ÷ early, time": result.late_time,
        "late ÷ early, memory": result.late_memory,
        "first action ÷ tenth": result.first_action,
        f"anew ÷ cached, block {result.options.at_block}": result.caches,
    }
    _bars(axes, found, f"{result.options.mode}: ratios, {result.options.blocks} blocks")
    figure.savefig(path)


def draw_stopping(result: StoppingResult, path: Path) -> None:
    """Draw the stopping benchmark: ratios of times, and times of a stop and of a continuation."""
    figure, panels = new_figure(2)
    drafts, stops = result.drafts, result.stops
    found = {
        "draft ÷ whole video": drafts.draft_ratio,
        "continuation ÷ whole video": drafts.continued_ratio,
        "steps with ÷ without checkpoints": result.checkpoints.ratio,
    }
    _bars(panels[0], found, "ratios of times (bar: median, line: min to max)")
    times = {
        "stop": stops.stop_s,
        "continue, with a step": stops.continue_s,
        "the step after": stops.step_s,
    }
    _bars(panels[1], times, "times, s (bar: median, line: min to max)")
    figure.savefig(path)


def draw_gateway(result: GatewayResult, path: Path) -> None:
    """Draw the gateway benchmark: ratios of times, and times of a request without and with the crowd."""
    figure, panels = new_figure(2)
    found = {"finished video": result.pairs.finished_ratio, "first progress": result.pairs.progress_ratio}
    _bars(panels[0], found, "gateway ÷ direct (bar: median, line: min to max)")
    panels[0].axvline(1.0, color="black", linewidth=0.8)
    names = ("p50", "p95", "p99")
    looks = {"the queue alone": result.queue.quiet, "with the crowd": result.queue.crowded}
    for name, look in looks.items():
        panels[1].plot(names, (look.get.p50_ms, look.get.p95_ms, look.get.p99_ms), marker="o", label=name)
    panels[1].set(title=f"GET of a job, {result.options.queue.jobs} waiting jobs", ylabel="ms")
    panels[1].set_ylim(bottom=0)
    panels[1].legend()
    figure.savefig(path)


def draw_meaning(result: MeaningResult, path: Path) -> None:
    """Draw the quality benchmark: each figure of each subject, with the references as lines.

    Videos of the first subject are drawn separately, as ``NAME_videos.png``.
    """
    figure, panels = new_figure(len(result.formats))
    for axes, (name, form) in zip(panels, result.formats.items(), strict=True):
        found = {subject: figures.get(name, 0.0) for subject, figures in result.subjects.items()}
        bars = axes.barh(list(found), list(found.values()), color="tab:green")
        axes.bar_label(bars, fmt=f"{{:{form}}}", label_type="center", color="white")
        for figures in result.references.values():
            if name in figures:
                axes.axvline(figures[name], color="black", linewidth=0.8)
        axes.set_title(name)
        axes.invert_yaxis()
    figure.suptitle(f"{result.options.family}; lines: {', '.join(result.references)}")
    figure.savefig(path)
    if result.examples:
        _draw_examples(result.examples, path.with_stem(f"{path.stem}_videos"))


def _draw_examples(examples: Sequence[Example], path: Path) -> None:
    """Draw frames of each video in a row, with its title above."""
    figure = Figure(figsize=(12.0, 0.6 * len(examples)), layout="constrained")
    FigureCanvasAgg(figure)
    for place, example in enumerate(examples):
        axes = figure.add_subplot((len(examples) + 1) // 2, 2, place + 1)
        frames = example.video[:: _frames_apart(len(example.video))]
        white = np.full_like(frames[0, :, :_GAP_PX], 255)
        axes.imshow(np.concatenate([part for frame in frames for part in (frame, white)], axis=1))
        axes.set_title(example.title, fontsize="medium")
        axes.axis("off")
    figure.savefig(path)


def _frames_apart(frames: int) -> int:
    return max(1, (frames - 1) // (_EXAMPLE_FRAMES - 1))


def _bars(axes: Axes, values: Mapping[str, Summary], title: str) -> None:
    names = list(values)
    medians = [value.median for value in values.values()]
    below = [value.median - value.min for value in values.values()]
    above = [value.max - value.median for value in values.values()]
    bars = axes.barh(names, medians, xerr=[below, above], capsize=3, color="tab:blue")
    axes.bar_label(bars, fmt="%.2f", label_type="center", color="white")
    axes.invert_yaxis()
    axes.set_title(title, fontsize="medium")


def _quality_bars(axes: Axes, result: DenoiserResult) -> None:
    found = {name: each.quality for name, each in result.measured.items() if each.quality}
    # An identical result has no PSNR, so its bar is empty and its label says so.
    decibels = [quality.psnr_db or 0.0 for quality in found.values()]
    bars = axes.barh(list(found), decibels, color="tab:green")
    labels = [
        f"{'identical' if quality.psnr_db is None else f'{quality.psnr_db:.1f} dB'}, SSIM {quality.ssim:.4f}"
        for quality in found.values()
    ]
    axes.bar_label(bars, labels=labels, label_type="edge", padding=3, fontsize="small")
    axes.invert_yaxis()
    axes.margins(x=0.5)
    compared = next((quality.compared for quality in found.values()), "nothing")
    axes.set_title(
        f"PSNR of the {compared} after {result.options.steps} steps against eager", fontsize="medium"
    )

"""Denoiser benchmark: the same weights in PyTorch, torch.compile and our graphs, in one run.

checkpoint -> subjects (loaded, exported, warmed up) -> rounds of one call each, in turn -> a whole denoising
trajectory each, step by step in turn -> quality against eager -> peak memory in separate processes. The
result records why a subject could not run; the others continue.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from slipway_benchmarks import similarity
from slipway_benchmarks.denoiser import memory, subjects
from slipway_benchmarks.denoiser.cases import LATENT_CHANNELS, DenoiserCase, write_checkpoint
from slipway_benchmarks.denoiser.ceiling import ProductRate, product_gflop
from slipway_benchmarks.denoiser.graphs import MODEL, export_denoiser
from slipway_benchmarks.denoiser.inputs import call_tensors
from slipway_benchmarks.denoiser.memory import MemoryCurve, MemoryJob
from slipway_benchmarks.denoiser.nodes import NodeCount, count_nodes
from slipway_benchmarks.similarity import Quality
from slipway_benchmarks.stats import Summary, ratios, summarize
from slipway_benchmarks.timing import reason_of, timed
from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.graph.dialect import PRECISIONS
from slipway_export.spec import Engine, Precision
from slipway_serving.diffusion.noise import Noise, make_noise
from slipway_serving.diffusion.schedules import diffusers_schedule
from slipway_serving.families.wan_t2v.experts import Expert, predict
from slipway_serving.protocol.errors import SlipwayError, Unrecoverable, raise_all
from slipway_serving.runtime.in_process import InProcessModels
from slipway_serving.system.temporary_folders import TemporaryFolder

if TYPE_CHECKING:
    from slipway_serving.runtime.program import Models

Report = Callable[[str], None]
Array = NDArray[Any]


@dataclass(frozen=True)
class DenoiserOptions:
    """Options of the denoiser benchmark.

    Attributes:
        case: Case with sizes, weights and threads.
        precisions: Precisions of the graphs.
        rounds: Number of timed calls of each subject.
        steps: Number of steps of the trajectory.
        compile: True to measure torch.compile too.
        decode: True to compare decoded videos rather than final latents.
        memory_tokens: Numbers of tokens at which to measure the peak memory of a call; empty measures none.
        checkpoint: Folder of the case's own weights; None for random ones.
    """

    case: DenoiserCase
    precisions: tuple[Precision, ...] = PRECISIONS[Engine.ONNXRUNTIME]
    rounds: int = 7
    steps: int = 20
    compile: bool = True
    decode: bool = False
    memory_tokens: tuple[int, ...] = (2048, 4096, 8192, 16384)
    checkpoint: Path | None = None

    def __post_init__(self) -> None:
        problems = []
        if self.rounds < 1:
            problems.append(f"rounds must be at least 1, got {self.rounds}")
        raise_all("bench", problems)
        self.case.request(self.steps)
        memory.check_tokens(self.memory_tokens)


@dataclass(frozen=True)
class Measured:
    """Figures of one subject.

    Attributes:
        warm_up_s: Duration of the first call, including compilation and allocation, in seconds.
        call_ms: Duration of one denoiser call, by round, in milliseconds.
        call_ratio: Eager ÷ subject, by round.
        step_ms: Duration of one step of the trajectory, by step, in milliseconds.
        step_ratio: Eager ÷ subject, by step.
        trajectory_s: Duration of all steps, in seconds.
        quality: Quality against eager; None for eager itself.
        nodes: Node count of its graph; None for PyTorch.
        memory: Peak memory of one call; None if not measured.
    """

    warm_up_s: float
    call_ms: Summary
    call_ratio: Summary
    step_ms: Summary
    step_ratio: Summary
    trajectory_s: float
    quality: Quality | None
    nodes: NodeCount | None
    memory: MemoryCurve | None


@dataclass(frozen=True)
class DenoiserResult:
    """Result of the denoiser benchmark.

    Attributes:
        options: Options of the benchmark.
        ceiling: Eager ÷ the products of a call at this machine's best float32 rate, by round.
        measured: Figures by subject; eager, the reference of all, comes first.
        not_run: Reasons why subjects have no figures, by subject.
        notes: Notes about other figures that were not measured, and why.
    """

    options: DenoiserOptions
    ceiling: Summary
    measured: Mapping[str, Measured]
    not_run: Mapping[str, str]
    notes: tuple[str, ...]


def run(options: DenoiserOptions, report: Report) -> DenoiserResult:
    """Measure a case.

    Args:
        options: Options of the benchmark.
        report: Callback that receives a line before each long step.

    Raises:
        SlipwayError: PyTorch eager, the reference of all subjects, could not run.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(options.case.threads)
    try:
        with TemporaryFolder("slipway-measurement-") as folder:
            checkpoint = options.checkpoint
            if checkpoint is None:
                report("writing a random checkpoint")
                checkpoint = folder / "checkpoint"
                checkpoint.mkdir()
                write_checkpoint(options.case, checkpoint)
            return _Run(options, checkpoint, folder, report).result()
    finally:
        torch.set_num_threads(threads)


class _Run:
    """State of one run: its subjects, and why others do not take part."""

    def __init__(self, options: DenoiserOptions, checkpoint: Path, folder: Path, report: Report) -> None:
        self.options, self.checkpoint, self.folder, self.report = options, checkpoint, folder, report
        self.models: dict[str, Models] = {}
        self.warm_up_s: dict[str, float] = {}
        self.samples: dict[str, Array] = {}
        self.not_run: dict[str, str] = {}
        self.notes: list[str] = []
        case = options.case
        self.text = (case.text_tokens, case.text_dim)
        self.inputs = call_tensors(case.latents, self.text, case.seed)
        self.products_ms: list[float] = []

    def result(self) -> DenoiserResult:
        self.prepare()
        calls = self.time_calls()
        steps, latents = self.trajectories()
        qualities = self.qualities(latents)
        nodes = {name: count_nodes(path) for name in self.models if (path := self.graph(name)) is not None}
        names = list(self.models)
        self.close()
        curves = self.memory_curves(names)
        measured = {
            name: Measured(
                warm_up_s=self.warm_up_s[name],
                call_ms=summarize(calls[name]),
                call_ratio=summarize(ratios(calls[subjects.EAGER], calls[name])),
                step_ms=summarize(steps[name]),
                step_ratio=summarize(ratios(steps[subjects.EAGER], steps[name])),
                trajectory_s=sum(steps[name]) / 1000,
                quality=qualities.get(name),
                nodes=nodes.get(name),
                memory=curves.get(name),
            )
            for name in names
        }
        ceiling = summarize(ratios(calls[subjects.EAGER], self.products_ms))
        return DenoiserResult(self.options, ceiling, measured, self.not_run, tuple(self.notes))

    def prepare(self) -> None:
        """Load every subject and call it once."""
        denoiser = subjects.eager(self.checkpoint)
        self.admit(subjects.EAGER, lambda: denoiser)
        if self.options.compile:
            self.admit(subjects.COMPILED, lambda: subjects.compiled(denoiser))
        for precision in self.options.precisions:
            self.admit(subjects.graph_name(precision.value), partial(self.open_graph, precision))

    def admit(self, name: str, load: Callable[[], Models]) -> None:
        """Load a subject and warm it up, or record why it does not run."""
        self.report(f"{name}: loading and warming up")
        try:
            models = load()
            started = time.perf_counter()
            self.samples[name] = models.call(MODEL, self.inputs, ["sample"])["sample"]
        except Exception as error:  # noqa: BLE001  (whatever stops one subject must not stop the others)
            self.drop(name, reason_of(error))
            return
        self.warm_up_s[name] = time.perf_counter() - started
        self.models[name] = models

    def repository(self, precision: str) -> Path:
        return self.folder / precision

    def graph(self, name: str) -> Path | None:
        """Return the graph file of a subject, or None for PyTorch."""
        for precision in self.options.precisions:
            if name == subjects.graph_name(precision.value):
                return self.repository(precision.value) / MODEL / "1" / "model.onnx"
        return None

    def open_graph(self, precision: Precision) -> InProcessModels:
        repository = self.repository(precision.value)
        export_denoiser(self.options.case, self.checkpoint, precision, repository, self.report)
        gc.collect()
        models = InProcessModels(repository, threads=self.options.case.threads)
        models.load(MODEL)
        return models

    def time_calls(self) -> dict[str, list[float]]:
        """Return the milliseconds of each subject's calls; in each round every subject makes one call.

        Each round also times the products of a call at the machine's best rate.
        """
        case = self.options.case
        rate = ProductRate(case.threads)
        times: dict[str, list[float]] = {name: [] for name in self.models}
        for number in range(1, self.options.rounds + 1):
            self.report(f"round {number} of {self.options.rounds}")
            for name, models in self.models.items():
                call = partial(models.call, MODEL, self.inputs, ["sample"])
                times[name].append(timed(call)[0])
            _, gflop_per_s = timed(rate.gflop_per_s)
            self.products_ms.append(1000 * product_gflop(case) / gflop_per_s)
        return times

    def trajectories(self) -> tuple[dict[str, list[float]], dict[str, Array]]:
        """Denoise from the same noise with every subject, step by step in turn.

        Returns:
            Milliseconds of each step, and the final latents, by subject.
        """
        walks = {name: self.walk(models) for name, models in self.models.items()}
        times: dict[str, list[float]] = {name: [] for name in walks}
        latents: dict[str, Array] = {}
        for step in range(1, self.options.steps + 1):
            self.report(f"trajectory: step {step} of {self.options.steps}")
            for name in list(self.models):
                step_ms, stepped = timed(partial(next, walks[name]))
                latents[name] = stepped.numpy()
                times[name].append(step_ms)
                if not np.isfinite(latents[name]).all():
                    self.drop(name, f"its latents are not finite after step {step}")
                    del latents[name]
        return times, latents

    def walk(self, models: Models) -> Iterator[torch.Tensor]:
        """Yield the latents after each step of the served loop, with one denoiser for all steps."""
        case = self.options.case
        checkpoint = Checkpoint(self.checkpoint, case.name)
        config = checkpoint.config("scheduler/scheduler_config.json")
        schedule = diffusers_schedule(config, None, self.options.steps, "bench", Noise(0))
        expert, embeds = Expert(MODEL, case.guidance_scale), self.inputs["encoder_hidden_states"]
        latents = make_noise(case.seed, (1, *case.latents[1:]))
        for timestep in schedule.timesteps:
            timesteps = np.full((1, 1), float(timestep), np.float32)
            inputs = {"hidden_states": latents.numpy(), "timestep": timesteps}
            prediction = predict(models, expert, inputs, embeds)
            latents = schedule.step(prediction, timestep, latents)
            yield latents

    def drop(self, name: str, reason: str) -> None:
        """Remove a subject from the run.

        Raises:
            Unrecoverable: The subject is eager, the reference of all.
        """
        if name == subjects.EAGER:
            raise Unrecoverable(f"bench: PyTorch eager must run, all is compared with it, got: {reason}")
        self.models.pop(name, None)
        self.not_run[name] = reason
        self.report(f"{name}: not run: {reason}")

    def qualities(self, latents: Mapping[str, Array]) -> dict[str, Quality]:
        """Compare every subject with eager."""
        compared, results, lpips = "final latents", dict(latents), None
        if self.options.decode:
            self.report("decoding the videos")
            compared, results = "decoded video", _decode(self.checkpoint, latents)
            lpips, reason = similarity.find_lpips()
        else:
            reason = "it compares pictures; --decode makes some"
        if lpips is None:
            self.notes.append(f"LPIPS was not measured: {reason}")
        return {
            name: self.compare(name, results, compared, lpips) for name in results if name != subjects.EAGER
        }

    def compare(
        self, name: str, results: Mapping[str, Array], compared: str, lpips: similarity.Lpips | None
    ) -> Quality:
        actual, expected = results[name], results[subjects.EAGER]
        # SSIM needs planes, but the channels of a picture are its last axis.
        planes = [np.moveaxis(array, -1, -3) if compared == "decoded video" else array
                  for array in (actual, expected)]  # fmt: skip
        return Quality(
            relative_l2=similarity.relative_l2(self.samples[name], self.samples[subjects.EAGER]),
            compared=compared,
            psnr_db=similarity.psnr_db(actual, expected),
            ssim=similarity.ssim(*planes),
            lpips=lpips(actual, expected) if lpips else None,
        )

    def close(self) -> None:
        """Free every subject, so that the measured processes have the machine's memory to themselves."""
        for models in self.models.values():
            if isinstance(models, InProcessModels):
                models.close()
        self.models.clear()
        gc.collect()

    def memory_curves(self, names: list[str]) -> dict[str, MemoryCurve]:
        """Measure one call of eager and of every graph at each size."""
        if not self.options.memory_tokens:
            return {}
        return {name: self.memory_curve(name) for name in names if name != subjects.COMPILED}

    def memory_curve(self, name: str) -> MemoryCurve:
        graph, points, failed = self.graph(name), [], {}
        folder = self.checkpoint if graph is None else graph.parents[2]
        model = None if graph is None else MODEL
        for tokens in self.options.memory_tokens:
            self.report(f"{name}: memory of a call with {tokens} tokens")
            threads = self.options.case.threads
            job = MemoryJob(str(folder), model, tokens, LATENT_CHANNELS, self.text, threads)
            try:
                points.append(memory.measure(job))
            except SlipwayError as error:
                failed[tokens] = str(error)
        return memory.curve(points, failed)


def _decode(checkpoint: Path, latents: Mapping[str, Array]) -> dict[str, Array]:
    """Decode latents with the checkpoint's own VAE; return [frames, height, width, 3], uint8."""
    from diffusers import AutoencoderKLWan

    from slipway_export.families.wan_t2v.network import decode

    vae = AutoencoderKLWan.from_pretrained(checkpoint / "vae", local_files_only=True).eval()
    videos = {}
    for name, array in latents.items():
        with torch.no_grad():
            pixels = decode(vae, torch.from_numpy(array))[0].permute(1, 2, 3, 0).numpy()
        videos[name] = np.round((pixels / 2 + 0.5).clip(0, 1) * 255).astype(np.uint8)
    return videos

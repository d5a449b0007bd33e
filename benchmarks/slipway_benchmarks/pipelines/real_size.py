"""Real-size benchmark: writes, exports, serves, calls and compares a checkpoint of public size.

Each part is a command in a separate process on this machine, one after the other; its time and peak memory
are a row of the table. The served video is compared with diffusers' own for the same checkpoint, noise and
prompt embeddings. The embeddings come from the server, so diffusers needs no text encoder. Rows are stored in
the work folder, and parts may run one at a time, in the order of the list.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table

from slipway_benchmarks import similarity
from slipway_benchmarks.processes import Ran, measured, serving, shown, slipway
from slipway_client import Client, TextToVideoRequest
from slipway_export.families.wan_t2v.presets import TEXT_TOKENS
from slipway_loadtests.json_report import write_json
from slipway_serving.diffusion.prompt import pad_rows
from slipway_serving.families.wan_t2v.request import FRAMES_PER_LATENT, PIXELS_PER_TOKEN
from slipway_serving.protocol.errors import InvalidRequest, Unrecoverable
from slipway_serving.runtime.program import text_tensor

FAMILY = "wan_t2v"
PROMPT, NEGATIVE = "A serene lake at sunset", "blurry, static"
_PROMPTS = {"prompt_embeds": PROMPT, "negative_prompt_embeds": NEGATIVE}
REQUIRED_DB = 40.0
_READY_TIMEOUT_S = 3600
# Axes of the exports that were measured before weights stayed on disk, for comparison.
SMALL_AXES = {"latent_frames": (1, 2, 3), "token_height": (4, 6, 8), "token_width": (4, 6, 8)}


@dataclass(frozen=True)
class RealSizeOptions:
    """Options of the real-size benchmark.

    Attributes:
        work: Folder for the checkpoints, the repository, logs and rows; existing contents are reused.
        preset: Preset of the served checkpoint.
        wide: Preset of the checkpoint of which only the first expert is exported.
        parts: Names of the parts to run; empty runs all.
        frames: Number of frames of the video.
        height: Height of the video, in pixels.
        width: Width of the video, in pixels.
        steps: Number of denoising steps.
        seed: Seed of the noise.

    Raises:
        InvalidRequest: At least one part does not exist.
    """

    work: Path
    preset: str = "1.3b"
    wide: str = "a14b-2-layers"
    parts: tuple[str, ...] = ()
    frames: int = 9
    height: int = 256
    width: int = 256
    steps: int = 2
    seed: int = 1

    def __post_init__(self) -> None:
        if unknown := [part for part in self.parts if part not in PARTS]:
            raise InvalidRequest(f"bench: part must be one of {', '.join(PARTS)}, got {', '.join(unknown)}")

    @property
    def checkpoint(self) -> Path:
        """Folder of the served checkpoint."""
        return self.work / "checkpoint"

    @property
    def wide_checkpoint(self) -> Path:
        """Folder of the checkpoint of which only the first expert is exported."""
        return self.work / "wide-checkpoint"

    @property
    def repository(self) -> Path:
        """Folder of the model repository."""
        return self.work / "models"

    def frames_file(self, subject: str) -> Path:
        """Return the file of a subject's frames, [frames, height, width, 3], uint8."""
        return self.work / f"frames-{subject}.npy"

    @property
    def request(self) -> TextToVideoRequest:
        """Request for the video."""
        return TextToVideoRequest(
            prompt=PROMPT, negative_prompt=NEGATIVE, frames=self.frames, height=self.height,
            width=self.width, steps=self.steps, guidance_scale=5.0, seed=self.seed, output="frames",
        )  # fmt: skip

    @property
    def axes(self) -> dict[str, tuple[int, int, int]]:
        """Ranges that end at the video's size, because export verifies at the largest size."""
        latents = (self.frames - 1) // FRAMES_PER_LATENT + 1
        sides = {"token_height": self.height, "token_width": self.width}
        tokens = {name: pixels // PIXELS_PER_TOKEN for name, pixels in sides.items()}
        return {
            "latent_frames": (1, latents, latents),
            # A range must have more than one size, or its graph would have a fixed shape.
            **{name: (min(4, max(1, side // 2)), side, side) for name, side in tokens.items()},
        }


@dataclass(frozen=True)
class Row:
    """Resources that a part took.

    Attributes:
        what: Description of the part.
        ran: Command, time, peak memory, and load of the machine.
        at: Time of its end, UTC.
        disk_bytes: Size of its output on disk; None if there is no output to keep.
        found: Other figures, by name with unit.
    """

    what: str
    ran: Ran
    at: str
    disk_bytes: int | None = None
    found: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class RealSizeResult:
    """All rows so far by part, in the order of the parts, and the options."""

    rows: Mapping[str, Sequence[Row]]
    options: RealSizeOptions


Rows = Iterator[Row]
Axes = Mapping[str, tuple[int, int, int]]


def run(options: RealSizeOptions, report: Callable[[str], None]) -> RealSizeResult:
    """Run the parts; store the rows of each as soon as it has ended.

    Args:
        options: Options of the benchmark.
        report: Callback that receives the name of each part before it runs.

    Raises:
        Unrecoverable: A command failed, or the served video is too far from diffusers' own.
    """
    (options.work / "logs").mkdir(parents=True, exist_ok=True)
    kept = options.work / "rows.json"
    for name, part in PARTS.items():
        if options.parts and name not in options.parts:
            continue
        report(name)
        ran = list(part(options))
        # Read the file after the part has run, because another run may have added rows meanwhile.
        rows = _read_rows(kept) | {name: ran}
        write_json({part: [asdict(row) for row in found] for part, found in rows.items()}, kept)
    rows = _read_rows(kept)
    _check(rows)
    return RealSizeResult({name: rows[name] for name in PARTS if name in rows}, options)


def _read_rows(kept: Path) -> dict[str, list[Row]]:
    if not kept.exists():
        return {}
    raw = json.loads(kept.read_text(encoding="utf-8"))
    return {name: [Row(**row | {"ran": Ran(**row["ran"])}) for row in found] for name, found in raw.items()}


def _check(rows: Mapping[str, Sequence[Row]]) -> None:
    psnr = next((row.found.get("fp32_psnr_db") for row in rows.get("diffusers", ())), None)
    if psnr is not None and psnr < REQUIRED_DB:
        raise Unrecoverable(
            f"bench: frames of the fp32 denoiser must be {REQUIRED_DB:g} dB or closer to diffusers', got"
            f" {psnr:.1f} dB"
        )


def _write_checkpoint(options: RealSizeOptions, *, wide: bool = False) -> Rows:
    place, preset = (options.wide_checkpoint, options.wide) if wide else (options.checkpoint, options.preset)
    if place.exists():
        return
    # The rename makes sure that a folder of the final name is complete.
    unfinished = place.with_name(f"{place.name}.unfinished")
    arguments = ("checkpoint", FAMILY, "--preset", preset, "--output", str(unfinished))
    ran = _command(options, f"checkpoint-{preset}", *arguments)
    unfinished.rename(place)
    yield _row(f"write the checkpoint {preset}", ran, place)


def _export(options: RealSizeOptions, component: str, precision: str) -> Rows:
    """Export a component of the served checkpoint into the repository."""
    ran = _run_export(options, options.checkpoint, precision, component, options.axes)
    yield _row(f"export {component}, {precision}", ran, options.repository / f"{FAMILY}_{component}")


def _export_others(options: RealSizeOptions) -> Rows:
    """Export the models around the graphs; graphs that are in the repository already are reused."""
    ran = _run_export(options, options.checkpoint, "int8", None, options.axes)
    yield _row("export all: the graphs are there", ran)


def _export_aside(options: RealSizeOptions, precision: str, *, wide: bool = False) -> Rows:
    """Export a first expert without placing it in the repository."""
    checkpoint, preset = (
        (options.wide_checkpoint, options.wide) if wide else (options.checkpoint, options.preset)
    )
    axes = options.axes if wide else SMALL_AXES
    ran = _run_export(options, checkpoint, precision, "denoiser_high", axes, "--check-only")
    sizes = "axes of the video" if wide else "axes 1:2:3, 4:6:8, 4:6:8"
    yield _row(f"export denoiser_high of {preset}, {precision}, {sizes}, not placed", ran)


def _run_export(
    options: RealSizeOptions, checkpoint: Path, precision: str, component: str | None, axes: Axes, *more: str
) -> Ran:
    arguments = ["--checkpoint", str(checkpoint), "--repository", str(options.repository)]
    arguments += ["--precision", precision, *(("--component", component) if component else ())]
    for name, sizes in axes.items():
        arguments += ["--axis", f"{name}={':'.join(map(str, sizes))}"]
    log = "-".join(["export", checkpoint.name, component or "all", precision, *more])
    return _command(options, log, "export", FAMILY, *arguments, *more)


def _serve(options: RealSizeOptions, precision: str) -> Rows:
    """Serve the repository, request the embeddings of both prompts, then the video."""
    log = options.work / "logs" / f"serve-{precision}.log"
    with serving(options.repository, _READY_TIMEOUT_S, log) as server:
        yield _row(f"start, {precision} denoiser: until ready", server.started)
        with Client(server.url) as client:
            embeds = {name: _embeds(client, text) for name, text in _PROMPTS.items()}
        np.savez(options.work / "embeds.npz", **embeds)
        server.tree.forget()
        request, before_s = options.request, server.tree.cpu_s()
        ran = _command(
            options, f"generate-{precision}", "generate", FAMILY, PROMPT, "--negative-prompt", NEGATIVE,
            "--frames", str(request.frames), "--size", f"{request.width}x{request.height}",
            "--steps", str(request.steps), "--guidance-scale", str(request.guidance_scale),
            "--seed", str(request.seed), "--output", str(options.frames_file(precision)), "--overwrite",
            "--url", server.url,
        )  # fmt: skip
        yield _row(
            f"call, {precision} denoiser: {request.frames} frames of {request.width}x{request.height},"
            f" {request.steps} steps",
            # Record the resources of the server, not those of the client.
            replace(ran, cpu_s=server.tree.cpu_s() - before_s, peak_rss_bytes=server.tree.peak_bytes),
        )


def _embeds(client: Client, text: str) -> NDArray[np.float32]:
    """Return a prompt's embeddings as the served loop passes them to the denoiser: [1, 512, width]."""
    found = client.infer(f"{FAMILY}_prompt", {"prompt": text_tensor(text)})
    return pad_rows(found["prompt_embeds"][0], int(found["attention_mask"].sum()), TEXT_TOKENS)[None]


def _compare(options: RealSizeOptions) -> Rows:
    """Make the same video with diffusers in float32, and compare the served videos with it."""
    module = "slipway_benchmarks.pipelines.real_size_reference"
    request = options.request
    job = {
        "checkpoint": str(options.checkpoint), "embeds": str(options.work / "embeds.npz"),
        "frames": str(options.frames_file("diffusers")), "num_frames": request.frames,
        "height": request.height, "width": request.width, "num_inference_steps": request.steps,
        "guidance_scale": request.guidance_scale, "seed": request.seed,
    }  # fmt: skip
    arguments = ["-m", module, json.dumps(job)]
    log = options.work / "logs" / "diffusers.log"
    ran = measured([sys.executable, *arguments], shlex.join(["python", *arguments]), log)
    expected = np.load(options.frames_file("diffusers"))
    found: dict[str, float | None] = {}
    for precision in ("fp32", "int8"):
        if (served := options.frames_file(precision)).exists():
            found[f"{precision}_psnr_db"] = similarity.psnr_db(np.load(served), expected)
    yield _row("diffusers in float32, from its load to the frames", ran, found=found)


def _command(options: RealSizeOptions, log: str, *arguments: str) -> Ran:
    return measured(slipway(*arguments), shown(arguments), options.work / "logs" / f"{log}.log")


def _row(
    what: str, ran: Ran, written: Path | None = None, found: Mapping[str, float | None] | None = None
) -> Row:
    files = written.rglob("*") if written else ()
    size = sum(path.stat().st_size for path in files if path.is_file()) if written else None
    return Row(what, ran, f"{datetime.now(UTC):%Y-%m-%d %H:%M}", size, found or {})


PARTS: dict[str, Callable[[RealSizeOptions], Rows]] = {
    "checkpoint": _write_checkpoint,
    "text-encoder": partial(_export, component="text_encoder", precision="int8"),
    "vae-decoder": partial(_export, component="vae_decoder", precision="fp32"),
    "denoiser-int8": partial(_export, component="denoiser_high", precision="int8"),
    "others": _export_others,
    "served-int8": partial(_serve, precision="int8"),
    "denoiser-fp32": partial(_export, component="denoiser_high", precision="fp32"),
    "served-fp32": partial(_serve, precision="fp32"),
    "diffusers": _compare,
    "before-fp32": partial(_export_aside, precision="fp32"),
    "before-fp16": partial(_export_aside, precision="fp16"),
    "wide-checkpoint": partial(_write_checkpoint, wide=True),
    "wide-denoiser": partial(_export_aside, precision="fp32", wide=True),
}
"""Parts by name, in their order."""


_HEADS = ("part", "time, s", "of processors, s", "peak RSS, GB", "on disk, GB", "load before it", "")


def real_size_json(result: RealSizeResult, machine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the benchmark as JSON."""
    return {
        "benchmark": "real-size",
        "machine": dict(machine),
        "settings": {name: str(value) for name, value in asdict(result.options).items()},
        "parts": {part: [asdict(row) for row in rows] for part, rows in result.rows.items()},
    }


def markdown(result: RealSizeResult) -> str:
    """Return the rows as a Markdown table, then the commands."""
    rows = [row for found in result.rows.values() for row in found]
    lines = [f"| {' | '.join(_HEADS)} |", "|---" * len(_HEADS) + "|"]
    lines += [f"| {' | '.join(_cells(row))} |" for row in rows]
    return "\n".join([*lines, "", "```", *(row.ran.command for row in rows), "```", ""])


def print_real_size(console: Console, result: RealSizeResult) -> None:
    """Print the rows as a table, then the command of each."""
    table = Table(*_HEADS, box=box.SIMPLE)
    rows = [row for found in result.rows.values() for row in found]
    for row in rows:
        table.add_row(*_cells(row))
    console.print(table)
    for row in rows:
        console.print(row.ran.command, highlight=False, markup=False, soft_wrap=True)


def _cells(row: Row) -> Sequence[str]:
    found = (
        f"{name.removesuffix('_psnr_db')}: {'identical' if db is None else f'{db:.1f} dB'}"
        for name, db in row.found.items()
    )
    return (
        row.what,
        f"{row.ran.time_s:.0f}",
        f"{row.ran.cpu_s:.0f}",
        f"{row.ran.peak_rss_bytes / 1e9:.2f}",
        "" if row.disk_bytes is None else f"{row.disk_bytes / 1e9:.2f}",
        f"{row.ran.load_average:.1f}",
        ", ".join(found),
    )

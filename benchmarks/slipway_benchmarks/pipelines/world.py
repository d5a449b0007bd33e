"""World benchmark: whether the time of a block stays constant, and how much the caches save.

Whole worlds are played on a real Triton, one after the other. The time of each block is measured by the
caller; the memory is that of the server's processes after the block. The last blocks of each world alternate
with the same number of a younger world's, so that other load on the machine affects both. In addition, two
graphs are timed in turn in one process: the graph of a block with its caches, and the graph of whole videos
over all frames so far, which a world without caches would have to run.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from rich import box
from rich.console import Console
from rich.table import Table

from slipway_benchmarks.processes import serving
from slipway_benchmarks.report import spread
from slipway_benchmarks.stats import Summary, ratios, summarize
from slipway_client import Client
from slipway_client.sessions import ClientSession
from slipway_export.checkpoint.axes import axes_of
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families import family_named
from slipway_export.graph.onnx import example_inputs
from slipway_export.options import ExportOptions
from slipway_export.run import run_export
from slipway_serving.families.matrix_game.facts import Facts
from slipway_serving.families.matrix_game.keys import actions_of
from slipway_serving.families.matrix_game.request import REQUESTS, BlockMade
from slipway_serving.protocol.errors import Unrecoverable
from slipway_serving.protocol.requests import Request
from slipway_serving.system.temporary_folders import TemporaryFolder

FAMILY = "matrix_game"
# First block with a full window, counted from 1, and number of compared blocks at either end.
FULL_FROM, COMPARED = 3, 10
_READY_TIMEOUT_S = 600
Report = Callable[[str], None]


@dataclass(frozen=True)
class WorldOptions:
    """Options of the world benchmark.

    Attributes:
        checkpoint: Preset, folder or hub id of the checkpoint.
        mode: Mode of the worlds.
        worlds: Number of worlds, played one after the other, and number of rounds of the graphs.
        blocks: Number of blocks of each world, at least two times ten plus the first two; the last ten are
            played in turn with a younger world.
        at_block: Number of the block whose time with and without caches is compared.
        threads: Number of threads of ONNX Runtime for the comparison of the graphs.
    """

    checkpoint: str = "tiny"
    mode: str = "universal"
    worlds: int = 3
    blocks: int = 60
    at_block: int = 20
    threads: int = 2


@dataclass(frozen=True)
class Played:
    """Measurements of one world.

    Attributes:
        took_s: Time of each block, from sending its actions to its last answer, in seconds.
        made: Server's report on each block.
        rss_bytes: Resident memory of the server's processes after each block, in bytes.
        younger: World whose first blocks with a full window alternated with the last ones of this world.
    """

    took_s: tuple[float, ...]
    made: tuple[BlockMade, ...]
    rss_bytes: tuple[int, ...]
    younger: Played | None = None


@dataclass(frozen=True)
class WorldResult:
    """Result of the world benchmark, with each ratio by world.

    Attributes:
        options: Options of the benchmark.
        block_s: Median time of a block with a full window, by world, in seconds.
        fps: Frames per second of those blocks.
        parts_s: Median time of each part of those blocks, in seconds.
        late_time: Median time of the last blocks ÷ that of a younger world's first blocks with a full window.
        late_memory: Median memory after the last blocks that were made alone ÷ that after the first with a
            full window.
        first_action: Denoising time of the first block ÷ that of the tenth, which shows that nothing is
            compiled on the way.
        caches: Time of the graph of whole videos ÷ that of the graph of a block, at one block, each for all
            steps.
    """

    options: WorldOptions
    block_s: Summary
    fps: Summary
    parts_s: Mapping[str, float]
    late_time: Summary
    late_memory: Summary
    first_action: Summary
    caches: Summary


def run(options: WorldOptions, report: Report) -> WorldResult:
    """Export, serve and play; then compare the graphs.

    Args:
        options: Options of the benchmark.
        report: Callback that receives a line before each long step.
    """
    with TemporaryFolder("slipway-measurement-") as folder:
        repository = folder / "models"
        report(f"exporting {options.checkpoint}")
        exported = ExportOptions(options.checkpoint, repository, variant=options.mode)
        run_export(family_named(FAMILY), exported)
        report("starting Triton")
        with (
            serving(repository, _READY_TIMEOUT_S, folder / "serve.log") as server,
            Client(server.url) as client,
        ):
            played = []
            for world in range(options.worlds):
                report(f"world {world + 1} of {options.worlds}")
                played.append(play_beside(client, options, lambda: server.tree.now_bytes))
        report("comparing a block with caches and without")
        caches = compare_caches(repository, options)
    return summarized(options, played, caches)


def play(client: Client, mode: str, blocks: int, rss_bytes: Callable[[], int] = lambda: 0) -> Played:
    """Play a world.

    Args:
        client: Client of the server.
        mode: Mode of the world.
        blocks: Number of blocks.
        rss_bytes: Function that returns the resident memory of the server's processes, in bytes.
    """
    with _opened(client, mode, rss_bytes) as world:
        world.go_on(blocks)
    return world.played()


def play_beside(client: Client, options: WorldOptions, rss_bytes: Callable[[], int]) -> Played:
    """Play a world whose last blocks alternate with a younger world's first blocks with a full window.

    Args:
        client: Client of the server.
        options: Options of the benchmark.
        rss_bytes: Function that returns the resident memory of the server's processes, in bytes.
    """
    with _opened(client, options.mode, rss_bytes) as old:
        old.go_on(options.blocks - COMPARED)
        with _opened(client, options.mode, rss_bytes) as young:
            young.go_on(FULL_FROM - 1)
            for _ in range(COMPARED):
                old.go_on(1)
                young.go_on(1)
    return replace(old.played(), younger=young.played())


class _World:
    """World in progress."""

    def __init__(self, session: ClientSession, turn: Request, rss_bytes: Callable[[], int]) -> None:
        self._session, self._turn, self._rss_bytes = session, turn, rss_bytes
        self._took: list[float] = []
        self._made: list[BlockMade] = []
        self._rss: list[int] = []

    def go_on(self, blocks: int) -> None:
        """Play the given number of further blocks."""
        for _ in range(blocks):
            begun = time.perf_counter()
            *_, last = self._session.step(self._turn)
            self._took.append(time.perf_counter() - begun)
            if not isinstance(last, BlockMade):
                raise Unrecoverable(f"bench: a block must end with its figures, got {type(last).__name__}")
            self._made.append(last)
            self._rss.append(self._rss_bytes())

    def played(self) -> Played:
        """Return the measurements so far."""
        return Played(tuple(self._took), tuple(self._made), tuple(self._rss))


@contextlib.contextmanager
def _opened(client: Client, mode: str, rss_bytes: Callable[[], int]) -> Iterator[_World]:
    """Open a world, and close it however the block ends."""
    picture = np.random.default_rng(0).integers(0, 256, (90, 160, 3), np.uint8)
    opening: Any = REQUESTS[mode](image=picture, seed=0)
    turn: Request = opening.turn(**actions_of("w", mode))
    with client.session(opening) as session:
        yield _World(session, turn, rss_bytes)


def compare_caches(repository: Path, options: WorldOptions) -> Summary:
    """Time one block with both graphs in turn, with random inputs; return whole ÷ block.

    Args:
        repository: Exported model repository.
        options: Options of the benchmark.
    """
    mode = options.mode
    facts = Facts.read(repository / f"{FAMILY}_{mode}" / "1")
    frames = options.at_block * facts.latents.block_frames
    family = family_named(FAMILY)
    with open_checkpoint(family, options.checkpoint) as checkpoint:
        plan = family.variant(mode).plan(checkpoint, axes_of(family, checkpoint, {}))
        by_label = {component.label: component for component in plan.components}
        block = example_inputs(by_label[f"{mode}/block_denoiser"], {"batch": 1})
        whole = example_inputs(by_label[f"{mode}_denoiser"], {"batch": 1, "latent_frames": frames})
    # Choose a start for which the window of the block is full.
    block["start"] = np.array([frames - facts.latents.block_frames], np.int64)
    graphs = (
        (repository / f"{FAMILY}_{mode}" / "1" / "block_denoiser.onnx", block, len(facts.steps) + 1),
        (repository / f"{FAMILY}_{mode}_denoiser" / "1" / "model.onnx", whole, len(facts.steps)),
    )
    timed = [_timed(path, inputs, steps, options.threads) for path, inputs, steps in graphs]
    for once in timed:
        once()
    rounds = [tuple(once() for once in timed) for _ in range(options.worlds)]
    return summarize(ratios([whole_s for _, whole_s in rounds], [block_s for block_s, _ in rounds]))


def _timed(path: Path, inputs: Mapping[str, Any], runs: int, threads: int) -> Callable[[], float]:
    """Return a function that runs a graph `runs` times and returns the elapsed seconds."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])

    def once() -> float:
        begun = time.perf_counter()
        for _ in range(runs):
            session.run(None, inputs)
        return time.perf_counter() - begun

    return once


def summarized(options: WorldOptions, played: Sequence[Played], caches: Summary) -> WorldResult:
    """Return the figures of played worlds.

    Args:
        options: Options of the benchmark.
        played: Measurements of worlds of `options.blocks` blocks.
        caches: Ratio of times, see :func:`compare_caches`.
    """
    full = slice(FULL_FROM - 1, None)
    block_s = [statistics.median(world.took_s[full]) for world in played]
    frames = played[0].made[-1].frames_made - played[0].made[-2].frames_made
    blocks = [made for world in played for made in world.made[full]]
    parts = ("denoise_s", "decode_s", "commit_s")
    return WorldResult(
        options=options,
        block_s=summarize(block_s),
        fps=summarize([frames / each for each in block_s]),
        parts_s={part: statistics.median(getattr(made, part) for made in blocks) for part in parts},
        late_time=summarize([_late_time(world) for world in played]),
        late_memory=summarize([_late_memory(world) for world in played]),
        first_action=summarize([world.made[0].denoise_s / world.made[9].denoise_s for world in played]),
        caches=caches,
    )


def _late_time(world: Played) -> float:
    """Return the median time of the last blocks ÷ that of a younger world's blocks made in turn with them."""
    if world.younger is None:
        raise ValueError("a world must have been played beside a younger one")
    return statistics.median(world.took_s[-COMPARED:]) / statistics.median(world.younger.took_s[-COMPARED:])


def _late_memory(world: Played) -> float:
    """Return the median memory after the last blocks made alone ÷ that after the first with a full window."""
    early = world.rss_bytes[FULL_FROM - 1 : FULL_FROM - 1 + COMPARED]
    return statistics.median(world.rss_bytes[-2 * COMPARED : -COMPARED]) / statistics.median(early)


def world_json(result: WorldResult, machine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the benchmark as JSON."""
    return {"benchmark": "world", "machine": dict(machine), **asdict(result)}


def print_world(console: Console, result: WorldResult) -> None:
    """Print the figures as a table."""
    options = result.options
    parts = ", ".join(f"{part.removesuffix('_s')} {1e3 * took:.1f}" for part, took in result.parts_s.items())
    alone = options.blocks - COMPARED
    first = f"{FULL_FROM} to {FULL_FROM + COMPARED - 1}"
    rows = (
        ("a block, ms", spread(summarize([1e3 * each for each in result.block_s.values]), 1)),
        ("its parts, ms", parts),
        ("frames a second", spread(result.fps, 1)),
        (f"time of blocks {alone + 1} to {options.blocks} ÷ {first}, in turn", spread(result.late_time)),
        (f"memory after blocks {alone - COMPARED + 1} to {alone} ÷ {first}", spread(result.late_memory, 3)),
        ("first action ÷ tenth, denoising", spread(result.first_action)),
        (f"block {options.at_block}: everything anew ÷ with caches", spread(result.caches, 1)),
    )
    table = Table(
        f"{options.mode}, {options.checkpoint}, {options.worlds} worlds of {options.blocks} blocks",
        "median (min to max)",
        box=box.SIMPLE,
    )
    for row in rows:
        table.add_row(*row)
    console.print(table)

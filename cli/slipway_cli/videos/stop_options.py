"""Options of `slipway generate` for videos that can be stopped, and the command from them to the files."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from slipway_cli import options
from slipway_cli.videos.files import SHEET_SUFFIX, DraftFile, StateFile, VideoFiles, numbered
from slipway_cli.videos.making import Session, make_drafts, make_video, seeded
from slipway_client.progress import notes
from slipway_serving.protocol.diffusion.stopping import DenoisingRequest
from slipway_serving.protocol.errors import raise_all

_MOST_DRAFTS = 64
Drafts = Annotated[
    int,
    typer.Option(
        "--drafts",
        min=1,
        max=_MOST_DRAFTS,
        help="Number of drafts with seeds that follow each other, sent one after the other. Each is stopped"
        " by --stop-after; --draft FILE.png shows all of them with their numbers, and number 3 of --state"
        " state.slipway is in state-3.slipway.",
    ),
]


def parameters() -> list[inspect.Parameter]:
    """Return the parameters that commands have for videos that can be stopped."""
    return [
        options.option("state_file", StateFile, None),
        options.option("draft_file", DraftFile, None),
        options.option("drafts", Drafts, 1),
    ]


def generate(
    kind: type[DenoisingRequest],
    arguments: Mapping[str, Any],
    left_out: Collection[str],
    output: Path,
    session: Session,
    *,
    overwrite: bool,
) -> None:
    """Check the options and the files of a request, and make the video or the drafts.

    Args:
        kind: Class of the request.
        arguments: Values of the options by their names.
        left_out: Names of the options that the user left out, whose values are the request's defaults.
        output: File of the video.
        session: Server and reports.
        overwrite: True if existing files may be replaced.

    Raises:
        SlipwayError: An option is invalid, or the request failed.
    """
    files = VideoFiles(output, arguments["state_file"], arguments["draft_file"])
    count, stop_after = arguments["drafts"], arguments["stop_after_step"]
    if count > 1:
        raise_all("generate", _draft_problems(files, stop_after))
    states = [files.state]
    if files.state is not None and count > 1:
        states = [numbered(files.state, number) for number in range(1, count + 1)]
    values: dict[str, Any] = {}
    for state in states:
        checked = replace(files, state=state)
        values |= checked.check(kind, stop_after, overwrite=overwrite, where="generate")
    stated = values | options.values(kind, arguments, notes(session.quiet))
    request = kind(**stated)
    if own := session.schedule(kind, left_out):
        request = kind(**{**stated, **own})
    if count > 1:
        make_drafts(seeded(request, count), files, session)
    else:
        make_video(request, files, session)


def _draft_problems(files: VideoFiles, stop_after: int | None) -> list[str]:
    """Return the problem of each option that several drafts need."""
    problems = []
    if stop_after is None:
        problems.append("--stop-after must be given with --drafts, got none; try --stop-after 10")
    if files.state is None:
        problems.append("--state must be given with --drafts, got none; try --state state.slipway")
    if files.draft is None or files.draft.suffix != SHEET_SUFFIX:
        problems.append(
            f"--draft must end in {SHEET_SUFFIX} with --drafts, got {files.draft or 'none'}; try --draft"
            f" sheet{SHEET_SUFFIX}"
        )
    return problems

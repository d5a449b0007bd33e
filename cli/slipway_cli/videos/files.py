"""Output files of a video that can be stopped: the video, its state and its draft.

All paths are checked before anything is sent. The form of the result and of the draft that a request asks
for follows from the suffixes.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from slipway_cli import saving
from slipway_cli.files import place_problem, replaced_files, write_whole
from slipway_serving.protocol.diffusion.stopping import ContactSheet, DenoisingRequest
from slipway_serving.protocol.errors import raise_all
from slipway_serving.protocol.events import FramesPart, VideoPart

STATE_SUFFIX = ".slipway"
SHEET_SUFFIX = ".png"
STATE_FILE = f"state{STATE_SUFFIX}"
"""Usual name of a state's file."""
# Form of the draft and of its frames, by the suffix of the draft's file.
_DRAFTS = {
    ".mp4": (VideoPart, {"draft": "video", "output": "video"}),
    SHEET_SUFFIX: (ContactSheet, {"draft": "sheet"}),
    ".npy": (FramesPart, {"draft": "video", "output": "frames"}),
}

StateFile = Annotated[
    Path | None,
    typer.Option(
        "--state",
        help="Output file for the state of a stopped video, from which `slipway continue` goes on. With it,"
        " Ctrl-C stops the video after its current step instead of cancelling it.",
        metavar=f"FILE{STATE_SUFFIX}",
    ),
]
DraftFile = Annotated[
    Path | None,
    typer.Option(
        "--draft",
        help="Output file for a draft of the video at the stop of --stop-after: .mp4 or .npy for all of its"
        " frames, .png for one picture of some frames.",
        metavar="FILE",
    ),
]


@dataclass(frozen=True)
class VideoFiles:
    """Output files of one video.

    Attributes:
        output: File of the finished video; a video that --stop-after stops has none.
        state: File of the state of a stopped video, or None.
        draft: File of the draft, or None.
    """

    output: Path
    state: Path | None = None
    draft: Path | None = None

    def check(
        self, kind: type[DenoisingRequest], stop_after: int | None, *, overwrite: bool, where: str
    ) -> dict[str, str]:
        """Check the paths before any work.

        Args:
            kind: Class of the request.
            stop_after: Number of steps after which the video is stopped; None finishes it.
            overwrite: True if existing files may be replaced.
            where: Name of the command, for messages.

        Returns:
            The fields of the request that follow from the files: the forms of the draft and of the result.

        Raises:
            InvalidRequest: A path cannot be written, is missing, or its suffix is not allowed.
        """
        forms: dict[str, str] = {}
        if stop_after is None and (form := saving.check_output(
            self.output, kind.events, overwrite=overwrite, where=where
        )):  # fmt: skip
            forms = {"output": form}
        problems = self._problems(kind, stop_after)
        files = {"--state": self.state, "--draft": self.draft}
        raise_all(where, problems or replaced_files(files, overwrite=overwrite))
        return forms if self.draft is None else dict(_DRAFTS[self.draft.suffix][1])

    def _problems(self, kind: type[DenoisingRequest], stop_after: int | None) -> list[str]:
        problems = []
        if stop_after is not None and self.state is None:
            problems.append(
                "--state must be given with --stop-after, since the work is lost without the state, got none;"
                f" try --state {STATE_FILE}"
            )
        if stop_after is None and self.draft is not None:
            problems.append(
                f"--draft must come with --stop-after, got {self.draft} alone; try --stop-after 10"
            )
        allowed = [suffix for suffix, (event, _) in _DRAFTS.items() if event in kind.events]
        for option, path, suffixes in (
            ("--state", self.state, [STATE_SUFFIX]),
            ("--draft", self.draft, allowed),
        ):
            if path is not None and (problem := place_problem(path, suffixes)):
                problems.append(f"{option} {problem}, got {path}; try {option} {option[2:]}{suffixes[0]}")
        return problems


def numbered(path: Path, number: int) -> Path:
    """Return the path of the state of one of several drafts: `state-3.slipway` for `state.slipway`."""
    return path.with_name(f"{path.stem}-{number}{path.suffix}")


def write_draft(draft: Any, path: Path) -> None:
    """Write a draft to a file.

    Args:
        draft: :class:`ContactSheet`, or a result of the client.
        path: Path of the file, with the suffix of the draft's form.
    """
    if isinstance(draft, ContactSheet):
        write_whole(path, lambda file: file.write(draft.sheet))
    elif path.suffix == ".npy":
        write_whole(path, lambda file: np.save(file, draft.array))
    else:
        write_whole(path, lambda file: file.write(draft.data))


def continue_hint(state: Path) -> str:
    """Return where a state is, and the command that continues from it."""
    return f"its state is in {state}; try `slipway continue {shlex.quote(str(state))} --output out.mp4`"

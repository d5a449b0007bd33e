"""Work on one video, or on several drafts, from the checked request to the files and the report.

Drafts are requests for the same video with seeds that follow each other. They are sent one after the other,
so that each progress line belongs to one of them, and other callers keep the server's other slots.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from slipway_cli import saving
from slipway_cli.files import write_whole
from slipway_cli.videos.files import VideoFiles, numbered, write_draft
from slipway_cli.videos.following import Followed, follow
from slipway_client.address import Address
from slipway_client.progress import Report, notes
from slipway_serving.protocol.command_output import print_json
from slipway_serving.protocol.diffusion.stopping import ContactSheet, DenoisingRequest
from slipway_serving.protocol.errors import SlipwayError, Unrecoverable
from slipway_serving.protocol.fields import fields_of
from slipway_serving.protocol.requests import USUAL_PARAMETER

if TYPE_CHECKING:
    from slipway_client import Client

_SCHEDULE = ("steps", "guidance_scale")


@dataclass(frozen=True)
class Session:
    """Server to call, and how to report.

    Attributes:
        address: Addresses and protocol of the server.
        tls: Folder of certificates, or None.
        json: True to print one JSON document on stdout instead of a line.
        quiet: True to print errors only.
    """

    address: Address
    tls: Path | None
    json: bool
    quiet: bool

    @contextmanager
    def client(self, what: str = "step") -> Iterator[tuple[Client, Report]]:
        """Open a client, and show progress on stderr while the block runs."""
        from slipway_client import Client
        from slipway_client.progress import progress

        with Client(*self.address, tls=self.tls) as client, progress(what, self.quiet) as report:
            yield client, report

    def schedule(self, kind: type[DenoisingRequest], names: Collection[str]) -> dict[str, Any]:
        """Fetch the number of steps and the guidance that the served model takes by default.

        A model that was distilled to a few steps has its own; the request's defaults suit any other.

        Args:
            kind: Class of the request.
            names: Names of the fields whose defaults are needed; others are not fetched.
        """
        fields = {field.name: field for field in fields_of(kind) if field.name in {*_SCHEDULE} & {*names}}
        if not fields:
            return {}
        with self.client() as (client, _):
            try:
                found = client.model_parameters(kind.model)
            except SlipwayError:  # The request itself waits for the server, and reports what is wrong.
                return {}
        return {
            name: field.kind(found[f"{USUAL_PARAMETER}{name}"])
            for name, field in fields.items()
            if f"{USUAL_PARAMETER}{name}" in found
        }

    def print(self, document: dict[str, Any], line: str) -> None:
        """Print the result as one JSON document or as one line for people."""
        if self.json:
            print_json(document)
        elif not self.quiet:
            typer.echo(line)


def make_video(request: DenoisingRequest, files: VideoFiles, session: Session) -> None:
    """Send a request, write what it makes and report it.

    Args:
        request: Checked request.
        files: Checked files.
        session: Server and reports.

    Raises:
        SlipwayError: The request failed, or was stopped for another reason than `stop_after_step`; see
            :func:`slipway_cli.videos.following.follow`.
    """
    started_s = time.monotonic()
    with session.client() as (client, report):
        found = follow(client, request, files.state, report, notes(session.quiet))
    elapsed_s = time.monotonic() - started_s
    document: dict[str, Any] = {
        "model": request.model,
        "output": None,
        "elapsed_s": elapsed_s,
        "content": None,
    }
    if found.stopped is not None:
        if files.draft is not None:
            _write_one_draft(found, request, files.draft)
        session.print(
            {**document, **_numbers(found), **_stop(found, files.state, files.draft)},
            _stopped_line(found, files, elapsed_s),
        )
        return
    content = saving.write(request, found.results, files.output)
    hits = saving.cache_hit_rate(found.results)
    document |= {"output": str(files.output), "content": content}
    moved = f", continued {found.moves} times on other servers" if found.moves else ""
    session.print(
        {**document, **_numbers(found), **_stop(found, None, None)},
        f"{files.output}: {saving.describe(content)}, generated in {elapsed_s:.1f} s"
        + ("" if hits is None else f", cache hit rate {hits:.0%}")
        + moved,
    )


def make_drafts(requests: Sequence[DenoisingRequest], files: VideoFiles, session: Session) -> None:
    """Make drafts of a video with several seeds, one after the other, and show them in one picture.

    Args:
        requests: Checked requests of :func:`seeded`, with `stop_after_step` and a sheet as their draft.
        files: Checked files. The states have the number of their draft in their names.
        session: Server and reports.

    Raises:
        SlipwayError: A request failed or was stopped; the states of the drafts before it are kept.
    """
    from slipway_cli.videos.sheet import join_sheets

    assert files.state is not None and files.draft is not None
    model, count = requests[0].model, len(requests)
    started_s = time.monotonic()
    sheets: list[bytes] = []
    documents = []
    for number, each in enumerate(requests, 1):
        state = numbered(files.state, number)
        with session.client(f"draft {number} of {count}, step") as (client, report):
            found = follow(client, each, state, report, notes(session.quiet))
        if not isinstance(found.draft, ContactSheet):
            raise Unrecoverable(f"{model}: the server must send a draft, got none; see its log")
        sheets.append(found.draft.sheet)
        seed = each.seed  # type: ignore[attr-defined]  # every family's request has a seed
        documents.append({"number": number, "seed": seed, **_numbers(found), **_stop(found, state, None)})
    sheet = join_sheets(sheets, model)
    write_whole(files.draft, lambda file: file.write(sheet))
    elapsed_s = time.monotonic() - started_s
    document = {"model": model, "output": None, "elapsed_s": elapsed_s, "content": None}
    states = f"{numbered(files.state, 1)} to {numbered(files.state, count)}"
    session.print(
        {**document, "draft": str(files.draft), "drafts": documents},
        f"{files.draft}: {count} drafts in {elapsed_s:.1f} s, states in {states}; no video is written;"
        f" `slipway continue {files.state} --pick 1` goes on with the first one",
    )


def seeded(request: DenoisingRequest, count: int) -> list[DenoisingRequest]:
    """Return a request with its own seed and those after it.

    Raises:
        InvalidRequest: A seed is too large.
    """
    first: int = request.seed  # type: ignore[attr-defined]  # every family's request has a seed
    return [replace(request, seed=first + number) for number in range(count)]  # type: ignore[call-arg]


def _write_one_draft(found: Followed, request: DenoisingRequest, path: Path) -> None:
    if found.draft is None:
        raise Unrecoverable(f"{request.model}: the server must send a draft, got none; see its log")
    write_draft(found.draft, path)


def _numbers(found: Followed) -> dict[str, Any]:
    """Return what the document of every video says about its way."""
    return {
        "cache_hit_rate": saving.cache_hit_rate(found.results),
        "moves": found.moves,
        "steps_repeated": found.steps_repeated,
        "same_engine": found.same_engine,
    }


def _stop(found: Followed, state: Path | None, draft: Path | None) -> dict[str, Any]:
    """Return what the document of every video says about its stop."""
    return {
        "stopped_step": None if found.stopped is None else found.stopped.stopped_step,
        "state": None if state is None else str(state),
        "draft": None if draft is None else str(draft),
    }


def _stopped_line(found: Followed, files: VideoFiles, elapsed_s: float) -> str:
    assert found.stopped is not None
    draft = "" if files.draft is None else f", draft in {files.draft}"
    return (
        f"{files.state}: stopped after step {found.stopped.stopped_step} of {found.stopped.steps} in"
        f" {elapsed_s:.1f} s{draft}; no video is written; `slipway continue {files.state}` goes on"
    )

"""Users import everything from slipway_client: documents show no other import, and nothing is missing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import slipway_client
from slipway_client import Event, Request, SlipwayError, retry
from slipway_export.families import BUILT_IN
from slipway_serving.protocol import errors
from slipway_serving.protocol.snapshots.requests import Restored, SnapshotPart

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE_BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
IMPORT = re.compile(r"^\s*(?:>>> )?(?:from|import) slipway_serving\b.*", re.MULTILINE)
# The sessions of a client take and restore snapshots; users see the bytes only.
INTERNAL = {Restored, SnapshotPart}


def exported() -> set[object]:
    return {getattr(slipway_client, name) for name in slipway_client.__all__}


def opened_and_turns() -> set[type[Request]]:
    """The requests of the built-in families' clients, their streams and the turns of their sessions."""
    clients = {request for family in BUILT_IN for request in family.requests}
    streams = {slipway_client.CorrectionStreamRequest, slipway_client.ListenRequest}
    opened = clients | streams
    return opened | {request.turn for request in opened if request.turn is not None}


def described(kind: type[SlipwayError]) -> set[type[SlipwayError]]:
    return {kind, *(error for each in kind.__subclasses__() for error in described(each))}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_block_imports_no_serving_package(page: Path) -> None:
    blocks = CODE_BLOCK.findall(page.read_text(encoding="utf-8"))
    assert [line for block in blocks for line in IMPORT.findall(block)] == []


def test_client_exports_every_request_of_the_built_in_families() -> None:
    assert opened_and_turns() <= exported()


def test_client_exports_every_event_that_a_request_is_answered_with() -> None:
    events: set[type[Event]] = {event for request in opened_and_turns() for event in request.events}
    assert events - INTERNAL <= exported()


def test_client_exports_every_error_that_it_raises() -> None:
    known = {
        error for error in described(SlipwayError) if error.__module__ in {errors.__name__, retry.__name__}
    }
    assert known <= exported()


def test_exported_names_are_sorted_and_exist() -> None:
    assert slipway_client.__all__ == sorted(slipway_client.__all__)
    assert all(hasattr(slipway_client, name) for name in slipway_client.__all__)

"""States as parts: whole again when all of them came, refused by what is wrong with one."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipway_serving.protocol.errors import InvalidRequest, Overloaded
from slipway_serving.protocol.snapshots.parts import (
    MAGIC,
    PART_BYTES,
    Header,
    digest_of,
    make,
    parse,
    read_parts,
)
from slipway_serving.protocol.snapshots.requests import Restore, Restored, Snapshot, SnapshotPart
from slipway_serving.protocol.turns import Turn
from slipway_serving.runtime.program import Settings
from slipway_serving.runtime.snapshots.sessions import RestorableSessions, StateContent
from slipway_serving.runtime.snapshots.states import ArraySpec, PartialState, SnapshotFormat

State = tuple[Mapping[str, Any], dict[str, np.ndarray]]
SPECS = {
    "keys": ArraySpec((3, 5)),
    "nothing": ArraySpec((0, 2)),
    "bytes": ArraySpec((7,), "uint8"),
    "values": ArraySpec((4,)),
}
RANDOM = np.random.default_rng(0)
ARRAYS = {name: (100 * RANDOM.standard_normal(spec.shape)).astype(spec.dtype) for name, spec in SPECS.items()}
TOLD = {"blocks": 3}


def snapshots(part_bytes: int = 10, files: str = "abc") -> SnapshotFormat[State]:
    return SnapshotFormat("sums", files, SPECS, lambda told, arrays: (told, arrays), part_bytes)


def parts_of(known: SnapshotFormat[State], name: str = "one") -> list[bytes]:
    return [known.part(number, name, TOLD, ARRAYS.__getitem__) for number in range(known.parts)]


def taken(known: SnapshotFormat[State], parts: list[bytes]) -> State | None:
    arriving, state = PartialState(known), None
    for part in parts:
        arriving.check(part)
        state = arriving.add(part)
    return state


@pytest.mark.parametrize("part_bytes", [1, 10, 25, 60, 83, 84, 1000])
def test_state_is_whole_again_when_all_its_parts_came(part_bytes: int) -> None:
    known = snapshots(part_bytes)
    parts = parts_of(known)
    # 60 bytes of keys, 7, and 16 of values.
    assert len(parts) == -(-83 // part_bytes)
    assert taken(known, parts[:-1]) is None
    state = taken(known, parts)
    assert state is not None and state[0] == TOLD
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(state[1].get(name, np.zeros((0, 2))), array)


def test_part_is_taken_when_it_is_exactly_full_and_holds_the_end_of_an_array() -> None:
    sizes = {"large": PART_BYTES + 5, "small": 3}
    arrays = {name: np.arange(size, dtype=np.uint32).astype(np.uint8) for name, size in sizes.items()}
    known: SnapshotFormat[State] = SnapshotFormat(
        "sums",
        "abc",
        {name: ArraySpec((size,), "uint8") for name, size in sizes.items()},
        lambda told, arrays: (told, arrays),
    )
    assert known.parts == 2
    parts = [known.part(number, "one", TOLD, arrays.__getitem__) for number in range(2)]
    assert [parse(part, "sums")[0].size for part in parts] == [PART_BYTES, 8]
    assert list(read_parts(io.BytesIO(b"".join(parts)), "w.world")) == parts
    state = taken(known, parts)
    assert state is not None
    for name, array in arrays.items():
        np.testing.assert_array_equal(state[1][name], array)


def test_array_is_read_only_for_the_parts_that_have_a_piece_of_it() -> None:
    known = snapshots(10)
    read: list[str] = []

    def reading(name: str) -> np.ndarray:
        read.append(name)
        return ARRAYS[name]

    for number in range(known.parts):
        known.part(number, "one", TOLD, reading)
    # Keys end with the sixth part, the bytes and the first values are in the seventh.
    assert read == ["keys"] * 6 + ["bytes", "values", "values", "values"]
    assert list(known.pieces(6)) == [("bytes", slice(0, 7)), ("values", slice(0, 3))]


@pytest.mark.parametrize("size", [-1, PART_BYTES + 1])
def test_part_is_refused_when_its_size_is_beyond_a_bound(size: int) -> None:
    part = make(Header("sums", "abc", "one", 0, 1, size, {}), b"")
    with pytest.raises(InvalidRequest, match=f"must have 0 to {PART_BYTES} bytes in a part, got {size} in"):
        parse(part, "sums")


@pytest.mark.parametrize("field", ["part", "parts", "size"])
def test_part_is_refused_when_a_number_of_its_header_is_none(field: str) -> None:
    header = replace(Header("sums", "abc", "one", 0, 1, 0, {}), **{field: True})
    with pytest.raises(InvalidRequest, match="bytes in a part, got"):
        parse(make(header, b""), "sums")


def test_header_is_taken_up_to_the_largest_size() -> None:
    def part(length: int) -> bytes:
        bare = Header("sums", "abc", "one", 0, 1, 0, {"text": ""})
        missing = length - int.from_bytes(make(bare, b"")[10:14], "little")
        return make(replace(bare, told={"text": "x" * missing}), b"")

    assert len(parse(part(1 << 20), "sums")[0].told["text"]) > 1_000_000
    with pytest.raises(InvalidRequest, match="of format 1, got 1 with a header of 1048577 bytes"):
        parse(part((1 << 20) + 1), "sums")


def test_part_is_refused_when_it_is_as_long_as_a_head_less_one_byte() -> None:
    head = parts_of(snapshots())[0][:14]
    with pytest.raises(
        InvalidRequest, match=r"sums: restore must be a part of a snapshot, got 13 bytes that"
    ):
        parse(head[:13], "sums")
    with pytest.raises(InvalidRequest, match="sums: restore must have an unchanged header"):
        parse(head, "sums")


def test_state_without_arrays_is_one_part() -> None:
    known: SnapshotFormat[State] = SnapshotFormat("sums", "abc", {}, lambda told, arrays: (told, arrays))
    assert taken(known, parts_of(known)) == (TOLD, {})


def changed(part: bytes, **changes: Any) -> bytes:
    header, content = parse(part, "sums")
    return make(replace(header, **changes), bytes(content))


def with_header(text: bytes) -> bytes:
    """Return a part whose header is any text."""
    part = struct.pack("<8sHI", MAGIC, 1, len(text)) + text
    return part + hashlib.sha256(part).digest()


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (lambda parts: parts[1][:-1], r"sums: restore must be a complete part of \d+ bytes, got \d+"),
        (lambda parts: parts[1][:40], "restore must have an unchanged header, got"),
        (lambda parts: parts[1][:10], "restore must be a part of a snapshot, got 10 bytes"),
        (lambda parts: b"", "restore must be a part of a snapshot, got 0 bytes"),
        (lambda parts: b"PK" + parts[1], "restore must be a part of a snapshot, got"),
        (lambda parts: parts[1][:-40] + b"\0" + parts[1][-39:], "got one with a wrong checksum"),
        (lambda parts: parts[1].replace(MAGIC + b"\1", MAGIC + b"\2"), "must be of format 1, got 2"),
        (lambda parts: parts[2], "restore must have part 1, got 2; try all parts in their order"),
        (lambda parts: parts[0], "restore must have part 1, got 0"),
        (lambda parts: changed(parts[1], model="x" * 100_000), "restore must have model 'sums', got 'xxx"),
        (lambda parts: changed(parts[1], model="other"), "restore must have model 'sums', got 'other'"),
        (lambda parts: parts_of(snapshots(files="xyz"))[1], "restore must have files 'abc', got 'xyz'"),
        (lambda parts: changed(parts[1], parts=4), "restore must have parts 9, got 4"),
        (lambda parts: parts_of(snapshots(), "two")[1], "must have snapshot 'one', got 'two'"),
        (lambda parts: changed(parts[1], told={"blocks": 4}), "restore must have the values .*3}, got .*4}"),
        (lambda _: make(Header("sums", "abc", "one", 1, 9, 3, TOLD), b"abc"), "must have 10 bytes in part 1"),
        (lambda parts: changed(parts[1], told=[3]), "unchanged header, got told of type list"),
        (lambda parts: changed(parts[1], told=None), "unchanged header, got told of type NoneType"),
        (lambda _: with_header(b"[" * 100_000), "restore must have an unchanged header, got"),
        (lambda _: with_header(b"[]"), "restore must have an unchanged header, got"),
        (lambda _: with_header(b"\xff{}"), "restore must have an unchanged header, got"),
        (lambda _: with_header(b"9" * 5000), "restore must have an unchanged header, got"),
        (lambda parts: changed(parts[1], size=-1), "must have 0 to 16777216 bytes in a part, got -1"),
        (lambda parts: changed(parts[1], size=2**62), "must have 0 to 16777216 bytes in a part, got"),
        (
            lambda _: make(Header("sums", "abc", "one", 2**62, 9, 3, TOLD), b"abc"),
            "restore must have part 1, got 4611686018427387904",
        ),
        (lambda parts: changed(parts[1], size="10"), "must have 0 to 16777216 bytes in a part, got '10'"),
    ],
)  # fmt: skip
def test_part_is_refused_when_it_is_not_the_next_of_its_snapshot(wrong: Any, problem: str) -> None:
    known = snapshots()
    parts = parts_of(known)
    arriving = PartialState(known)
    arriving.check(parts[0])
    arriving.add(parts[0])
    with pytest.raises(InvalidRequest, match=problem) as refusal:
        arriving.check(wrong(parts))
    assert len(str(refusal.value)) < 1000
    # The right one is taken after all.
    arriving.check(parts[1])
    arriving.add(parts[1])
    assert arriving.received == 2


def test_parts_are_told_apart_when_they_come_from_one_file() -> None:
    parts = parts_of(snapshots())
    assert list(read_parts(io.BytesIO(b"".join(parts)), "w.world")) == parts
    with pytest.raises(InvalidRequest, match="w.world: restore must be a part of a snapshot, got 3 bytes"):
        list(read_parts(io.BytesIO(parts[0] + b"abc"), "w.world"))


def test_digest_is_of_a_versions_files_and_not_of_the_configuration(tmp_path: Path) -> None:
    def digest(files: dict[str, str]) -> str:
        (tmp_path / "manifest.json").write_text(json.dumps({"files": files}))
        return digest_of([tmp_path], "1")

    first = digest({"1/model.onnx": "a", "config.pbtxt": "b"})
    assert first == digest({"1/model.onnx": "a", "config.pbtxt": "c"})
    assert first != digest({"1/model.onnx": "b", "config.pbtxt": "b"})
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(InvalidRequest, match="manifest.json: must be the manifest of an export"):
        digest_of([tmp_path], "1")


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[RestorableSessions[State]]:
    numbers = {"max_sessions": {"string_value": "2"}, "session_idle_s": {"string_value": "60"}}
    settings = Settings("sums", tmp_path, {"parameters": numbers})

    def pack(state: State) -> StateContent:
        return StateContent("one", state[0], state[1].__getitem__)

    made = RestorableSessions(settings, snapshots, pack)
    yield made
    made.open_sessions.close()


def begin(sessions: RestorableSessions[State], name: str) -> None:
    with sessions.turn(Turn(name, start=True), lambda: (TOLD, ARRAYS), lambda _: None):
        pass


def test_session_goes_on_under_another_id_when_all_parts_came(sessions: RestorableSessions[State]) -> None:
    begin(sessions, "a")
    for number in range(9):
        form = "bytes" if number % 2 else "bytes_base64"
        part = sessions.answer(Snapshot(number, form), Turn("a"))
        assert isinstance(part, SnapshotPart) and (part.part, part.parts) == (number, 9)
        assert part.snapshot.isascii() == (form == "bytes_base64")
        given = base64.b64encode(part.data) if number % 3 else part.data
        assert sessions.answer(Restore(given), Turn("b", start=number == 0)) == Restored(number + 1, 9)
    for name in ("a", "b"):
        with sessions.turn(Turn(name), lambda: (TOLD, {}), lambda _: None) as session:
            np.testing.assert_array_equal(session.state[1]["keys"], ARRAYS["keys"])


def test_session_stays_as_it_was_when_a_part_is_refused(sessions: RestorableSessions[State]) -> None:
    begin(sessions, "a")
    parts = parts_of(snapshots())
    with pytest.raises(InvalidRequest, match="snapshot_part must be 0 to 8, got 9"):
        sessions.answer(Snapshot(9), Turn("a"))
    with pytest.raises(InvalidRequest, match="restore must begin a new session, got a part for an open one"):
        sessions.answer(Restore(parts[0]), Turn("a"))
    with pytest.raises(InvalidRequest, match="is already open"):
        sessions.answer(Restore(parts[0]), Turn("a", start=True))
    with sessions.turn(Turn("a"), lambda: (TOLD, {}), lambda _: None) as session:
        assert session.state == (TOLD, ARRAYS)


def test_arriving_session_waits_for_its_next_part(sessions: RestorableSessions[State]) -> None:
    parts = parts_of(snapshots())
    with pytest.raises(InvalidRequest, match="restore must have part 0, got 1"):
        sessions.answer(Restore(parts[1]), Turn("b", start=True))
    assert sessions.open_sessions.count_open() == 0
    sessions.answer(Restore(parts[0]), Turn("b", start=True))
    with (
        pytest.raises(InvalidRequest, match="restore must be complete before another turn, got 1 of 9 parts"),
        sessions.turn(Turn("b"), lambda: (TOLD, {}), lambda _: None),
    ):
        pass
    with pytest.raises(InvalidRequest, match="restore must be complete before another turn"):
        sessions.answer(Snapshot(0), Turn("b"))
    assert sessions.answer(Restore(parts[1]), Turn("b")) == Restored(2, 9)


def test_session_is_not_begun_when_there_is_nothing_to_begin_from(
    sessions: RestorableSessions[State],
) -> None:
    with pytest.raises(
        InvalidRequest, match="snapshot_part must come after the first turn of a session, got"
    ):
        sessions.answer(Snapshot(0), Turn("a", start=True))
    begin(sessions, "a")
    begin(sessions, "b")
    with pytest.raises(Overloaded, match="all 2 sessions are in use"):
        sessions.answer(Restore(parts_of(snapshots())[0]), Turn("c", start=True))
    assert sessions.open_sessions.count_open() == 2


@pytest.mark.parametrize(
    ("make_it", "problem"),
    [
        (lambda: Snapshot(-1), "snapshot_part must be 0 or more, got -1"),
        (lambda: Snapshot(0, "text"), "output must be one of bytes, bytes_base64, got 'text'"),
        (lambda: Restore(b"no part"), "restore must be a part of a snapshot, got 7 bytes that begin with"),
    ],
)
def test_turn_is_refused_by_field_when_it_is_made(make_it: Any, problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        make_it()


def test_session_is_asked_for_its_state_once_for_each_part(tmp_path: Path) -> None:
    numbers = {"max_sessions": {"string_value": "1"}, "session_idle_s": {"string_value": "60"}}
    made: list[str] = []

    def make_snapshots() -> SnapshotFormat[State]:
        made.append("made")
        return snapshots()

    sessions: RestorableSessions[State] = RestorableSessions(
        Settings("sums", tmp_path, {"parameters": numbers}),
        make_snapshots,
        lambda state: StateContent("named", {**state[0], "more": 1}, state[1].__getitem__),
    )
    begin(sessions, "a")
    assert made == []
    for number in (0, 6):
        part = sessions.answer(Snapshot(number), Turn("a"))
        assert isinstance(part, SnapshotPart)
        header, content = parse(part.data, "sums")
        assert header == Header("sums", "abc", "named", number, 9, 10, {"blocks": 3, "more": 1})
        whole = b"".join(ARRAYS[name].tobytes() for name in SPECS)
        assert bytes(content) == whole[10 * number : 10 * number + 10]
    assert made == ["made"]
    sessions.open_sessions.close()


def test_session_ends_when_its_last_turn_is_a_snapshot(sessions: RestorableSessions[State]) -> None:
    begin(sessions, "a")
    sessions.answer(Snapshot(0), Turn("a", end=True))
    assert sessions.open_sessions.count_open() == 0


def test_turn_of_the_session_is_checked_and_named_when_it_is_its_own(
    sessions: RestorableSessions[State],
) -> None:
    begin(sessions, "a")

    def refuse(state: State) -> None:
        raise InvalidRequest(f"refused {state[0]}")

    with (
        pytest.raises(InvalidRequest, match="refused .*3"),
        sessions.turn(Turn("a"), lambda: (TOLD, {}), refuse),
    ):
        pass
    with pytest.raises(InvalidRequest) as failure:
        sessions.answer(Snapshot(0), Turn("b", start=True))
    text = "snapshot_part must come after the first turn of a session, got it in the first"
    assert str(failure.value) == f"sums: {text}; try it in a later turn"
    with pytest.raises(InvalidRequest, match="^sums: snapshot_part must be 0 to 8, got 9$"):
        sessions.answer(Snapshot(9), Turn("a"))

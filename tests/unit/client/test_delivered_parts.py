"""Parts of a result that came before a state: clients keep them in the state and join them with the rest."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted_peer import (
    WHOLE,
    Fleet,
    Script,
    continued,
    part,
    request,
    sent_fields,
    sent_state,
    state,
    state_bytes,
    steps,
    stopped,
)

from slipway_client import (
    Checkpoint,
    Frames,
    InvalidRequest,
    TextToVideoRequest,
    Video,
    continued_request,
    read_state_file,
    write_state,
)
from slipway_client.delivered_parts import DeliveredPart, encode_parts
from slipway_client.states import join_state, split_state
from slipway_serving.protocol.errors import NotReady
from slipway_serving.protocol.events import FramesPart
from slipway_serving.protocol.snapshots.denoising_states import STATE_PART_BYTES, array_parts
from slipway_serving.protocol.snapshots.parts import Header, make, parse

pytestmark = pytest.mark.timeout(120)
OTHER = {"grpc": "http", "http": "grpc"}
GONE = NotReady("wan_t2v: gone")
AB, CD = part(b"ab", 0), part(b"cd", 2)
STATE = state_bytes(2)
JOINED = join_state(STATE, [AB, CD], "wan_t2v")


@pytest.fixture(params=[("grpc", False), ("grpc", True), ("http", False), ("http", True)], ids=str)
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    protocol, asynchronous = request.param
    with ExitStack() as stack:
        yield Fleet(protocol, asynchronous, stack)


ONE_CLIENT = pytest.mark.parametrize("fleet", [("grpc", False), ("grpc", True)], indirect=True, ids=str)


def own_state(fleet: Fleet, number: int = 0) -> bytes:
    """Return the state that a request brought to the first peer."""
    return bytes(sent_fields(fleet.peers[0].asked[number])["continue_from"])


def frames(first: int, values: list[int], *, final: bool = True) -> FramesPart:
    pixels = np.repeat(np.array(values, np.uint8), 16 * 16 * 3).reshape(-1, 16, 16, 3)
    return FramesPart(pixels, first, 1.5, final=final, frames_total=5)


def test_video_is_whole_when_it_is_continued_by_another_client_over_the_other_protocol(fleet: Fleet) -> None:
    fleet.start(Script([*steps(1), AB, *steps(2), *stopped(2, "step")]))
    stop = fleet.ask("generate", request(stop_after_step=2))[-1]
    assert split_state(stop.state, "here") == (STATE, (AB,))
    second = Fleet(OTHER[fleet.protocol], fleet.asynchronous, fleet.stack)
    second.start(Script([continued(2), *steps(3, 4), CD]))
    rest = continued_request(TextToVideoRequest, stop.state)
    assert second.ask("generate", rest)[-1] == Video(b"abcd", 1.5)
    assert own_state(second) == STATE


def test_frames_are_whole_when_a_part_that_was_not_final_came_before_the_state(fleet: Fleet) -> None:
    sizes: dict[str, Any] = {"frames": 5, "height": 16, "width": 16, "output": "frames"}
    early, late = frames(2, [7, 8, 9], final=False), frames(0, [1, 2, 3, 4])
    end = frames(4, [5])
    fleet.start(Script([early, end, *steps(2), *stopped(2, "step")]))
    stop = fleet.ask("generate", request(stop_after_step=2, **sizes))[-1]
    second = Fleet(OTHER[fleet.protocol], fleet.asynchronous, fleet.stack)
    second.start(Script([continued(2), *steps(3, 4), late]))
    result = second.ask("generate", request(continue_from=stop.state, **sizes))[-1]
    assert isinstance(result, Frames)
    assert result.array[:, 0, 0, 0].tolist() == [1, 2, 3, 4, 5]
    assert own_state(second) == STATE


def test_checkpoint_has_the_parts_that_came_before_it_and_no_later_ones(fleet: Fleet) -> None:
    first = [*steps(1), AB, *sent_state(1), *steps(2), part(b"xx", 2), GONE]
    again = [continued(1), *steps(2), CD, *sent_state(2), *steps(3, 4)]
    fleet.start(Script(first, again))
    events = fleet.ask("generate", request(checkpoint_every_steps=1))
    states = [split_state(event.state, "here") for event in events if isinstance(event, Checkpoint)]
    assert states == [(state_bytes(1), (AB,)), (STATE, (AB, CD))]
    assert own_state(fleet, 1) == state_bytes(1)
    assert events[-1] == Video(b"abcd", 1.5, steps_repeated=1, moves=1)


@ONE_CLIENT
def test_state_has_all_parts_when_a_continued_video_stops_again(fleet: Fleet) -> None:
    fleet.start(Script([continued(2), *steps(3), part(b"ef", 4, 6), *stopped(3, "step")]))
    begun = join_state(STATE, [part(b"ab", 0, 6), part(b"cd", 2, 6)], "wan_t2v")
    stop = fleet.ask("generate", request(continue_from=begun, stop_after_step=3))[-1]
    expected = (part(b"ab", 0, 6), part(b"cd", 2, 6), part(b"ef", 4, 6))
    assert split_state(stop.state, "here") == (state_bytes(3), expected)


@ONE_CLIENT
def test_parts_stay_when_the_server_fails_before_the_first_state_of_a_continued_video(fleet: Fleet) -> None:
    fleet.start(Script([continued(2), *steps(3), part(b"xx", 2), GONE], [continued(2), *steps(3, 4), CD]))
    begun = join_state(STATE, [AB], "wan_t2v")
    events = fleet.ask("generate", request(checkpoint_every_steps=1, continue_from=begun))
    assert events[-1] == Video(b"abcd", 1.5, steps_repeated=1, moves=1)
    assert [own_state(fleet, number) for number in range(2)] == [STATE] * 2


@ONE_CLIENT
def test_stream_sends_the_servers_own_parts_and_gives_what_arrives(fleet: Fleet) -> None:
    fleet.start(Script([continued(2), CD]))
    assert fleet.ask("stream", request(continue_from=join_state(STATE, [AB], "m"))) == [continued(2), CD]
    assert own_state(fleet) == STATE


@ONE_CLIENT
def test_state_as_base64_text_is_split_too(fleet: Fleet) -> None:
    fleet.start(Script([continued(2), *steps(3, 4), CD]))
    text = base64.b64encode(join_state(STATE, [AB], "wan_t2v"))
    assert fleet.ask("generate", request(continue_from=text))[-1] == Video(b"abcd", 1.5)
    assert own_state(fleet) == STATE


@pytest.mark.parametrize(
    ("delivered", "output", "must"),
    [
        (AB, "frames", "video"),
        (AB, "frames_base64", "video"),
        (frames(0, [1]), "video", "frames"),
        (frames(0, [1]), "video_base64", "frames"),
    ],
    ids=str,
)
def test_other_form_is_refused_before_anything_is_sent(
    fleet: Fleet, delivered: DeliveredPart, output: str, must: str
) -> None:
    fleet.start(Script(WHOLE))
    said = (
        f"wan_t2v: output must be {must}, the form of the parts that the state has, got {output}; try {must}"
    )
    for method in ("generate", "stream"):
        with pytest.raises(InvalidRequest) as refused:
            fleet.ask(method, request(continue_from=join_state(STATE, [delivered], "m"), output=output))
        assert str(refused.value) == said
    assert fleet.peers[0].asked == []


@pytest.mark.parametrize("output", ["video", "video_base64"])
def test_base64_text_is_the_same_form(fleet: Fleet, output: str) -> None:
    if fleet.protocol == "grpc" and output == "video_base64":
        fleet.start(Script([continued(2), replace(CD, video=base64.b64encode(b"cd"))]))
    else:
        fleet.start(Script([continued(2), CD]))
    begun = join_state(STATE, [AB], "wan_t2v")
    assert fleet.ask("generate", request(continue_from=begun, output=output))[-1] == Video(b"abcd", 1.5)


def test_file_and_request_keep_the_delivered_parts(tmp_path: Path) -> None:
    path = tmp_path / "lake.slipway"
    write_state(path, JOINED)
    assert read_state_file(path) == JOINED
    assert continued_request(TextToVideoRequest, JOINED).continue_from == JOINED
    assert split_state(JOINED, "here") == (STATE, (AB, CD))


@pytest.mark.parametrize(("parts", "output"), [([AB], "video"), ([frames(0, [1])], "frames"), ([], "video")])
def test_continued_request_has_the_form_of_the_delivered_parts(parts: list[Any], output: str) -> None:
    data = join_state(STATE, parts, "wan_t2v")
    assert continued_request(TextToVideoRequest, data).output == output
    assert continued_request(TextToVideoRequest, data, output="frames_base64").output == "frames_base64"


def test_state_without_delivered_parts_is_unchanged() -> None:
    assert join_state(STATE, [], "here") == STATE
    assert split_state(STATE, "here") == (STATE, ())


def test_delivered_part_may_be_larger_than_a_part_of_a_state() -> None:
    large = part(bytes(range(256)) * (STATE_PART_BYTES // 100), 0)
    kept = replace(state(2), kept={"latents": np.zeros(STATE_PART_BYTES, np.uint8), "more": np.ones(9)})
    assert len([*kept.parts()]) == 2
    own = kept.to_bytes()
    assert split_state(join_state(own, [large, CD], "here"), "here") == (own, (large, CD))


def delivered(**told: Any) -> bytes:
    """Return a state with a delivered part whose header says something else, with a right checksum."""
    header, content = parse(join_state(STATE, [AB], "here")[len(STATE) :], "here")
    return STATE + make(replace(header, told={**header.told, **told}), bytes(content))


def renamed(old: str, new: str) -> bytes:
    names = parse(join_state(STATE, [AB], "here")[len(STATE) :], "here")[0].told["names"]
    return delivered(names=[new if name == old else name for name in names])


def retyped(name: str, dtype: str) -> bytes:
    told = parse(join_state(STATE, [AB], "here")[len(STATE) :], "here")[0].told
    arrays = [
        [dtype if each == name else before, shape]
        for each, (before, shape) in zip(told["names"], told["arrays"], strict=True)
    ]
    return delivered(arrays=arrays)


def foreign() -> bytes:
    told = {"delivered": 1, "state": sha256(STATE).hexdigest(), "number": 0, "count": 1}
    return STATE + b"".join(
        array_parts(Header("m", "", "n", 0, 0, 0, {**told, "names": ["sheet"]}), [np.zeros(1, np.uint8)])
    )


def sized(**numbers: int) -> bytes:
    header, content = parse(join_state(STATE, [AB], "here")[len(STATE) :], "here")
    return STATE + make(replace(header, **numbers), bytes(content))


def as_text() -> bytes:
    text = frames(0, [1]).as_text()
    return join_state(STATE, [text], "here")


BEHIND = len(STATE)
DAMAGED: dict[str, tuple[Callable[[], bytes], str]] = {
    "cut": (lambda: JOINED[:-1], "be a complete part"),
    "cut in the header": (lambda: JOINED[: BEHIND + 40], "have an unchanged header"),
    "cut in the first bytes": (lambda: JOINED[: BEHIND + 5], "be a part of a snapshot, got 5 bytes"),
    "a changed byte": (lambda: JOINED[:-40] + bytes([JOINED[-40] ^ 1]) + JOINED[-39:], "an unchanged part"),
    "no part": (lambda: STATE + b"nonsense that is long enough", "be a part of a snapshot, got 14 bytes"),
    "the last is missing": (
        lambda: STATE + next(encode_parts([AB, CD], STATE, "m")), "have all of its 2 delivered parts, got 1",
    ),
    "the first is missing": (
        lambda: STATE + [*encode_parts([AB, CD], STATE, "m")][1], "delivered part 0 of 2 next, got 1 of 2",
    ),
    "another order": (
        lambda: STATE + b"".join([*encode_parts([AB, CD], STATE, "m")][::-1]),
        "have delivered part 0 of 2 next, got 1 of 2",
    ),
    "another state": (
        lambda: STATE + b"".join(encode_parts([AB], state_bytes(1), "m")),
        "have the parts that were delivered before it, got those of another state",
    ),
    "another format": (lambda: delivered(delivered=2), "have delivered parts of format 1, got 2"),
    "a state behind": (lambda: JOINED + STATE, "have delivered parts of format 1, got None"),
    "a count that is none": (lambda: delivered(count=[1]), "have all of its [1] delivered parts, got 1"),
    "two forms": (
        lambda: join_state(STATE, [AB, frames(0, [1])], "m"), "delivered parts of one form, got frames and",
    ),
    "a draft": (
        lambda: join_state(STATE, [replace(AB, draft_step=1)], "m"), "of a result, got parts of a draft",
    ),
    "frames as text": (as_text, "have delivered frames as pixels, got base64 text"),
    "another event": (foreign, "have valid delivered parts, got response must carry one of frames, video"),
    "a missing field": (lambda: renamed("chunk", "x"), "delivered parts, got VideoPart must carry chunk"),
    "bytes of another type": (lambda: retyped("video", "bool"), "have delivered parts of a video, got"),
    "a number of another type": (lambda: retyped("chunk", "float32"), "parts, got chunk must be INT32"),
    "a name twice": (lambda: renamed("chunk", "first_frame"), "got VideoPart must carry chunk"),
    "more names than arrays": (lambda: delivered(names=["x"] * 99), "have delivered parts of a video, got"),
    "fewer bytes than arrays": (
        lambda: delivered(arrays=[["uint8", [1]]]), "have the bytes of its arrays and no others",
    ),
    "names that are none": (lambda: delivered(names=5), "have delivered parts of a video, got"),
    "arrays beyond the bytes": (
        lambda: delivered(arrays=[["uint8", [10**12]]]), "have the bytes of all of its arrays",
    ),
    "arrays of objects": (lambda: delivered(arrays=[["object", [1]]]), "have arrays of"),
    "another number of parts": (lambda: sized(parts=2), "have all 2 parts of a delivered part, got 1"),
    "a part that is not the first": (lambda: sized(part=1), "have part 0 of 1 of a delivered part next, got"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_delivered_part_is_refused_by_name_when_it_is_damaged(name: str, tmp_path: Path) -> None:
    make_state, said = DAMAGED[name]
    data = make_state()
    with pytest.raises(InvalidRequest) as refused:
        split_state(data, "here")
    assert str(refused.value).startswith("here: continue_from must ")
    assert said in str(refused.value)
    path = tmp_path / "lake.slipway"
    path.write_bytes(data)
    with pytest.raises(InvalidRequest, match="lake.slipway: continue_from must "):
        read_state_file(path)
    with pytest.raises(InvalidRequest, match="wan_t2v: continue_from must "):
        continued_request(TextToVideoRequest, data)


@ONE_CLIENT
def test_nothing_is_sent_when_a_delivered_part_is_damaged(fleet: Fleet) -> None:
    fleet.start(Script(WHOLE))
    contradicting = join_state(STATE, [AB, part(b"xx", 0)], "m")
    for data, said in (
        (JOINED[:-1], "be a complete part"),
        (contradicting, r"have delivered parts of one video, got others \(chunk must be a new one of None"),
    ):
        with pytest.raises(InvalidRequest, match=f"wan_t2v: continue_from must {said}"):
            fleet.ask("generate", request(continue_from=data))
    assert fleet.peers[0].asked == []


@pytest.mark.parametrize(
    "data",
    [STATE[:-1], STATE[:60], STATE * 2, b"nonsense", b"", STATE[:-40] + b"?" + STATE[-39:]],
    ids=["cut", "cut in the header", "twice", "nonsense", "nothing", "changed"],
)
def test_damage_to_the_servers_own_parts_is_left_to_their_reader(data: bytes) -> None:
    assert split_state(data, "here") == (data, ())


def test_header_of_a_delivered_part_says_what_it_is() -> None:
    header, _ = parse(next(encode_parts([AB], STATE, "wan_t2v")), "here")
    told = json.loads(json.dumps(header.told))
    assert (header.model, told["delivered"], told["number"], told["count"]) == ("wan_t2v", 1, 0, 1)
    assert told["arrays"][told["names"].index("video")] == ["uint8", [2]]

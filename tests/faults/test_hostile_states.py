"""States that are damaged, foreign or made to do harm: each is refused by name, before any work."""

from __future__ import annotations

import base64
import json
import pickle
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from typing import Any

import httpx
import numpy as np
import pytest
from gate import settled

from slipway_client import (
    Client,
    Frames,
    InvalidRequest,
    NotReady,
    Stopped,
    TextToVideoRequest,
)
from slipway_serving.protocol.snapshots.denoising_states import DenoisingState, Origin, read_state
from slipway_serving.protocol.snapshots.parts import MAGIC
from slipway_serving.triton.server import Server

REQUEST = TextToVideoRequest("a lake", frames=5, height=32, width=32, steps=6, output="frames")


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    with Client(server.grpc_url) as connected:
        yield connected


@pytest.fixture(scope="module")
def state(client: Client) -> DenoisingState:
    return read_state(stopped(client, REQUEST), "test")


@pytest.fixture(scope="module")
def undisturbed(client: Client) -> np.ndarray:
    *_, result = client.generate(REQUEST)
    return result.array


def stopped(client: Client, request: TextToVideoRequest) -> bytes:
    *_, last = client.generate(replace(request, stop_after_step=3))
    assert isinstance(last, Stopped)
    assert last.state is not None
    return last.state


def kept(state: DenoisingState, **changes: Any) -> bytes:
    return replace(state, kept={**state.kept, **changes}).to_bytes()


def scheduler(state: DenoisingState, **changes: Any) -> bytes:
    return kept(state, schedule={**state.kept["schedule"], **changes})


def header(state: DenoisingState, change: Callable[[dict[str, Any]], None]) -> bytes:
    """Return a state of one part whose header says something else, with a right checksum."""
    (part,) = state.parts()
    _, _, size = struct.unpack_from("<8sHI", part)
    head, content = json.loads(part[14 : 14 + size]), part[14 + size : -32]
    change(head)
    text = json.dumps(head).encode()
    changed = struct.pack("<8sHI", MAGIC, 1, len(text)) + text + content
    return changed + sha256(changed).digest()


def told(**changes: Any) -> Callable[[DenoisingState], bytes]:
    return lambda state: header(state, lambda head: head["told"].update(changes))


LATENTS = np.zeros((1, 16, 2, 4, 4), np.float32)
NESTED: Any = 1
for _ in range(900):
    NESTED = [NESTED]
HOSTILE: dict[str, tuple[Callable[[DenoisingState], bytes], str]] = {
    "empty": (lambda _: b"", "the state of a stopped video, got 0 bytes"),
    "a pickle": (lambda _: pickle.dumps({"a": 1}), "the state of a stopped video, got"),
    "a zip": (lambda _: b"PK\x03\x04" + bytes(100), "the state of a stopped video, got"),
    "magic alone": (lambda _: MAGIC, "be a part of a snapshot, got 8 bytes"),
    "another format": (lambda _: struct.pack("<8sHI", MAGIC, 9, 4) + b"{}{}", "be of format 1, got 9"),
    "a huge header": (lambda _: struct.pack("<8sHI", MAGIC, 1, 2**31), "with a header of 2147483648 bytes"),
    "a header of no JSON": (lambda _: struct.pack("<8sHI", MAGIC, 1, 4) + b"abcd", "an unchanged header"),
    "cut": (lambda state: state.to_bytes()[:-1], "be a complete part of"),
    "cut in the header": (lambda state: state.to_bytes()[:40], "have an unchanged header"),
    "a changed byte": (lambda s: s.to_bytes()[:-40] + b"\x01" + s.to_bytes()[-39:], "wrong checksum"),
    "a part twice": (lambda state: state.to_bytes() * 2, "have part 1 of 1 next, got part 0"),
    "a missing part": (lambda state: b"".join([*state.parts(2000)][:-1]), "have all of its"),
    "parts in another order": (lambda state: b"".join([*state.parts(2000)][::-1]), "have part 0 of"),
    "another model": (
        lambda state: replace(state, model="framepack_i2v").to_bytes(),
        "be the state of a video of wan_t2v, got one of 'framepack_i2v'",
    ),
    "other weights": (
        lambda s: replace(s, origin=replace(s.origin, checkpoint="0" * 64)).to_bytes(),
        "be of this server's checkpoint",
    ),
    "another export": (
        lambda s: replace(s, origin=replace(s.origin, files="0" * 64)).to_bytes(),
        "be of this server's export",
    ),
    "another precision": (
        lambda s: replace(
            s, origin=replace(s.origin, engines=dict.fromkeys(s.origin.engines, "torch bf16"))
        ).to_bytes(),
        "be made with the precision of",
    ),
    "another state format": (told(state=2), "be of state format 1, got 2"),
    "steps beyond the end": (told(step=7), "have a step within its steps, got 7 of 6"),
    "a step that is no number": (told(step="x"), "have a step within its steps"),
    "an origin that is none": (told(origin={"path": "/etc/passwd"}), "be the state of a stopped video"),
    "arrays of objects": (told(arrays=[["object", [1]]]), "have arrays of"),
    "arrays of another size": (told(arrays=[["float32", [10**12]]]), "have the bytes of all of its arrays"),
    "a negative size": (told(arrays=[["float32", [-1]]]), "have arrays of"),
    "too many arrays": (told(arrays=[["bool", [0]]] * 5000), "have at most 4096 arrays"),
    "an array that is not there": (told(kept={"map": {"latents": {"array": 99}}}), "be the state of"),
    "a deep tree": (told(kept={"map": {"loop": NESTED}}), ""),
    "no contents": (told(kept={"map": {}}), "fit the request, got another one: it lacks 'loop'"),
    "a request of another size": (
        lambda s: replace(s, request={**s.request, "width": 48}).to_bytes(), "width must be that of",
    ),
    "a request that is invalid": (
        lambda s: replace(s, request={**s.request, "steps": 10**9}).to_bytes(), "steps must be 1 to 100",
    ),
    "a request with a mapping": (
        lambda s: replace(s, request={**s.request, "seed": {"a": 1}}).to_bytes(), "have a valid seed",
    ),
    "latents of another size": (
        lambda s: kept(s, latents=LATENTS[:, :, :1]), "latents must have the shape",
    ),
    "latents of another type": (lambda s: kept(s, latents=LATENTS.astype(np.float64)), "must be float32"),
    "no latents": (lambda s: kept(s, latents=None), "latents must be given after a first step"),
    "latents that are no numbers": (lambda s: kept(s, latents=LATENTS * np.nan), "contain finite numbers"),
    "huge latents": (lambda s: kept(s, latents=LATENTS + 1e30), "contain finite numbers of at most 1e+06"),
    "a loop that there is not": (lambda s: kept(s, loop=5), "must be within 1 loops of 6 steps"),
    "a step as a text": (lambda s: kept(s, step="3"), "must be within 1 loops of 6 steps"),
    "noise that is none": (lambda s: kept(s, noise=np.zeros(7, np.uint8)), "fit the request"),
    "a scheduler at another step": (lambda s: scheduler(s, _step_index=5), "must be at step 3, got 5"),
    "a scheduler's method": (lambda s: scheduler(s, step=1), "step must not be replaced"),
    "a scheduler's history of another size": (
        lambda s: scheduler(s, model_outputs=[LATENTS[:, :1], LATENTS[:, :1]]), "arrays must have the shape",
    ),
    "a scheduler without history": (lambda s: scheduler(s, model_outputs=[]), "cannot take step 4"),
    "a scheduler of a huge order": (lambda s: scheduler(s, this_order=10**6), "cannot take step 4"),
    "carried values": (lambda s: kept(s, carried={"path": 1}), "must carry nothing, got ['path']"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_state_is_refused_by_name_when_it_is_hostile(
    client: Client, state: DenoisingState, undisturbed: np.ndarray, name: str
) -> None:
    make, message = HOSTILE[name]
    data = make(state)
    if not data.startswith(MAGIC):
        with pytest.raises(InvalidRequest, match=r"continue_from must be the state of a stopped video"):
            replace(REQUEST, continue_from=data)
        return
    with pytest.raises(InvalidRequest) as refused:
        list(client.generate(replace(REQUEST, continue_from=data)))
    assert message in str(refused.value)
    assert str(refused.value).startswith("wan_t2v: ")
    assert len(str(refused.value)) < 600


def test_other_requests_are_unaffected_when_hostile_states_came(
    server: Server, client: Client, state: DenoisingState, undisturbed: np.ndarray
) -> None:
    pid = server.pid
    for make, _ in HOSTILE.values():
        data = make(state)
        if data.startswith(MAGIC):
            with pytest.raises(InvalidRequest):
                list(client.generate(replace(REQUEST, continue_from=data)))
    *_, result = client.generate(REQUEST)
    assert isinstance(result, Frames)
    assert np.array_equal(result.array, undisturbed)
    assert server.pid == pid
    settled(server)


def test_state_is_refused_over_http_when_it_is_no_state(server: Server) -> None:
    url = f"http://{server.http_url.removeprefix('http://')}/v2/models/wan_t2v/generate_stream"
    for text in ("../../etc/passwd", base64.b64encode(pickle.dumps([1])).decode(), "AAAA"):
        answer = httpx.post(url, json={"prompt": "x", "continue_from": text}, timeout=60)
        assert "continue_from must be the state of a stopped video" in answer.text


def test_state_of_64_mib_costs_no_more_than_its_size(client: Client, state: DenoisingState) -> None:
    data = kept(state, carried={"huge": np.zeros(16 << 20, np.float32)})
    with pytest.raises((InvalidRequest, NotReady)) as refused:
        list(client.generate(replace(REQUEST, continue_from=data)))
    assert "must carry nothing, got ['huge']" in str(refused.value)


def test_origin_names_every_model_of_the_family(state: DenoisingState) -> None:
    assert state.origin == Origin(state.origin.checkpoint, state.origin.files, state.origin.engines)
    assert set(state.origin.engines) == {
        "wan_t2v_denoiser_high", "wan_t2v_denoiser_low", "wan_t2v_text_encoder", "wan_t2v_vae_decoder",
    }  # fmt: skip
    assert set(state.origin.engines.values()) == {"onnxruntime fp32"}

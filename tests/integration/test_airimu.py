"""AirIMU served by the real Triton: whole recordings and streams, against PyTorch and against each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from airimu_fixtures import (
    BOUND,
    IDLE_S,
    OUTPUTS,
    Array,
    Signals,
    assert_same,
    async_infer,
    by_torch,
    chunk_of,
    further,
    joined,
    record,
    rotations,
    settled,
    signals,
    small_repository,
    stream_in,
    up_of,
    url_of,
)
from load_environment import assert_all_answered, load_environment
from server_fixtures import loading_warnings, metric, wait_until

from slipway_cli.root import run
from slipway_client import AsyncClient, Client, InvalidRequest, Overloaded, Turn
from slipway_client.imu.read import read_recording
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families.airimu.family import FAMILY
from slipway_export.families.airimu.network import Network, load_network
from slipway_serving.families.airimu.facts import Facts
from slipway_serving.families.airimu.request import (
    CorrectionRequest,
    Corrections,
    CorrectionStreamRequest,
    CorrectionTurn,
)
from slipway_serving.protocol.turns import NO_SESSION
from slipway_serving.triton.server import Server, ServerConfig


@pytest.fixture(scope="module")
def repository(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_repository(shared, tmp_path_factory.mktemp("airimu"))


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    with Server(ServerConfig(repository, http_port=0, grpc_port=0, metrics_port=0)) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.grpc_url) as connected:
        yield connected


@pytest.fixture(scope="module")
def network() -> Network:
    with open_checkpoint(FAMILY, "tiny") as checkpoint:
        return load_network(checkpoint.path, checkpoint.source)


@pytest.mark.parametrize("frames", [1, 10, 500, 1000, 1009, 5000])
def test_served_corrections_equal_pytorch_at_any_length(
    client: Client, network: Network, frames: int
) -> None:
    given, turned = signals(frames, batch=2), rotations(2)
    level = np.array([[0, 0, 1]] * 2, np.float32)
    for extra, up in (({}, level), ({"initial_rotation": turned}, up_of(turned))):
        answer = client.infer("airimu", {**given, **extra})
        for name, expected in zip(OUTPUTS[2:], by_torch(network, given, up), strict=True):
            np.testing.assert_allclose(answer[name], expected, rtol=0, atol=BOUND, err_msg=name)
        np.testing.assert_array_equal(answer["corrected_acc"], given["acc"] + answer["correction_acc"])
        np.testing.assert_array_equal(answer["corrected_gyro"], given["gyro"] + answer["correction_gyro"])
        assert answer["acc_cov"].min() > 0


def test_comparison_with_pytorch_can_fail(client: Client, network: Network) -> None:
    """A wrong lead-in, a lost state or another recording would be far off."""
    given = signals(100)
    answer = client.infer("airimu", given)["correction_acc"]
    sideways = by_torch(network, given, np.array([[1, 0, 0]], np.float32))[0]
    other = by_torch(network, signals(100, seed=1), np.array([[0, 0, 1]], np.float32))[0]
    assert min(np.abs(answer - wrong).max() for wrong in (sideways, other)) > 100 * BOUND


def test_rotation_changes_the_beginning(client: Client) -> None:
    given = signals(50)
    level = client.infer("airimu", given)
    same = client.infer("airimu", {**given, "initial_rotation": np.array([[0, 0, 0, 1]], np.float32)})
    assert_same(same, level)
    turned = client.infer("airimu", {**given, "initial_rotation": rotations()})
    assert np.abs(turned["correction_acc"] - level["correction_acc"]).max() > 100 * BOUND


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_served_stream_equals_the_served_whole(server: Server, protocol: Any) -> None:
    random = np.random.default_rng(0)
    url = server.grpc_url if protocol == "grpc" else server.http_url
    with Client(url, protocol) as client:
        for frames in (1, 9, 40, 1009, 5000):
            given = signals(frames)
            cuts = sorted({0, frames, *random.integers(0, frames + 1, 6).tolist()})
            streamed = stream_in(client, given, cuts, sequence=f"{protocol}-{frames}")
            assert_same(streamed, client.infer("airimu", given))


def turn_of(given: Signals, start: int, stop: int) -> CorrectionTurn:
    return CorrectionTurn(**chunk_of(given, start, stop))


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_session_gives_the_one_event_of_the_whole_recording_in_parts(server: Server, protocol: Any) -> None:
    given, turned = signals(500), rotations()
    with Client(url_of(server, protocol), protocol) as client:
        (whole,) = client.generate(CorrectionRequest(**given, initial_rotation=turned))
        parts: list[Any] = []
        with client.session(CorrectionStreamRequest(turned)) as session:
            for start, stop in ((0, 100), (100, 250)):
                parts += session.step(turn_of(given, start, stop))
            parts += session.step(turn_of(given, 250, 500), last=True)
    assert isinstance(whole, Corrections)
    assert_same(joined([vars(part) for part in parts]), vars(whole))


@pytest.mark.parametrize("protocol", ["grpc", "http"])
async def test_session_does_the_same_when_it_is_awaited(server: Server, protocol: Any) -> None:
    given = signals(300)
    async with AsyncClient(url_of(server, protocol), protocol) as client:
        (whole,) = [event async for event in client.generate(CorrectionRequest(**given))]
        async with client.session(CorrectionStreamRequest()) as session:
            parts = [event async for event in session.step(turn_of(given, 0, 200))]
            parts += [event async for event in session.step(turn_of(given, 200, 300), last=True)]
        assert_same(joined([vars(part) for part in parts]), vars(whole))
        async with client.session(CorrectionStreamRequest()) as session:
            _ = [event async for event in session.step(turn_of(given, 0, 200))]
        with pytest.raises(InvalidRequest, match="is not open"):
            await client.infer("airimu_stream", given, turn=Turn(session.id))


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_session_ends_on_the_server_when_its_body_fails(server: Server, protocol: Any) -> None:
    given = signals(40)
    with Client(url_of(server, protocol), protocol) as client:
        with (
            pytest.raises(RuntimeError, match="elsewhere"),
            client.session(CorrectionStreamRequest()) as session,
        ):
            assert len(list(session.step(turn_of(given, 0, 40)))) == 1
            raise RuntimeError("elsewhere")
        with pytest.raises(InvalidRequest, match="is not open"):
            client.infer("airimu_stream", given, turn=Turn(session.id))


def test_session_goes_on_when_a_chunk_was_refused(client: Client) -> None:
    given = signals(60)
    with client.session(CorrectionStreamRequest()) as session:
        parts: list[Any] = list(session.step(turn_of(given, 0, 30)))
        with pytest.raises(InvalidRequest, match="acc must have 1 to 5000 frames"):
            list(session.step(turn_of(given, 0, 0)))
        with pytest.raises(InvalidRequest, match="acc must be finite, got nan at frame 7"):
            list(session.step(CorrectionTurn(holed(np.nan), signals(20)["gyro"])))
        parts += session.step(turn_of(given, 30, 60))
        parts += session.step(turn_of(given, 0, 0), last=True)
    assert_same(joined([vars(part) for part in parts]), client.infer("airimu", given))


def test_latency_is_what_the_facts_say(repository: Path, client: Client) -> None:
    facts = Facts.read(repository / "airimu_stream/1")
    given = signals(100)
    held_back, answered = [], 0
    for frame in range(100):
        turn = Turn(11, start=frame == 0, end=frame == 99)
        answered += client.infer("airimu_stream", chunk_of(given, frame, frame + 1), turn=turn)[
            "acc_cov"
        ].shape[1]
        held_back.append(frame + 1 - answered)
    assert max(held_back) == facts.held_back == 16
    assert held_back[-1] == 0


def test_concurrent_requests_merge_and_get_their_own_answers(server: Server, client: Client) -> None:
    asked = [signals(100 if i % 3 else 137, seed=i) for i in range(48)]
    expected = [client.infer("airimu", each) for each in asked]

    def merged() -> bool:
        models = ("airimu", "airimu_codenet")
        before = [settled(server, model) for model in models]
        answers = async_infer(server, "airimu", [(each, {}) for each in asked])
        for answer, wanted in zip(answers, expected, strict=True):
            assert_same({name: answer.as_numpy(name) for name in OUTPUTS}, wanted)
        counted = [further(server, model, then, 48) for model, then in zip(models, before, strict=True)]
        return all(executions < 48 for executions in counted)

    # A sender that hardly gets to run sends one after the other: then it sends again.
    wait_until(merged, "48 requests at once run as fewer batches")


def test_concurrent_streams_merge_and_do_not_mix(server: Server, client: Client) -> None:
    asked = {i + 1: signals(200, seed=i) for i in range(24)}
    before = settled(server, "airimu_stream")
    parts: dict[int, list[dict[str, Array]]] = {i: [] for i in asked}
    for start in range(0, 200, 50):
        requests = [
            (
                chunk_of(each, start, start + 50),
                {"sequence_id": i, "sequence_start": start == 0, "sequence_end": start == 150},
            )
            for i, each in asked.items()
        ]
        for i, answer in zip(asked, async_infer(server, "airimu_stream", requests), strict=True):
            parts[i].append({name: answer.as_numpy(name) for name in OUTPUTS})
    for i, each in asked.items():
        assert_same(joined(parts[i]), client.infer("airimu", each))
    assert further(server, "airimu_stream", before, 4 * 24) < 4 * 24


def changed(**changes: Any) -> Signals:
    return {**signals(20), **changes}


def holed(value: float) -> Array:
    acc = signals(20)["acc"].copy()
    acc[0, 7, 1] = value
    return acc


EMPTY = np.zeros((1, 0, 3), np.float32)
BAD_SIGNALS = [
    (
        changed(gyro=signals(19)["gyro"]),
        r"acc and gyro must have the same frames.*\[1, 20, 3\] and \[1, 19, 3\]",
    ),
    (changed(acc=holed(np.nan)), "acc must be finite, got nan at frame 7"),
    (changed(acc=holed(np.inf)), "acc must be finite, got inf at frame 7"),
    (changed(acc=EMPTY, gyro=EMPTY), r"acc must have 1 to 5000 frames, got shape \[1, 0, 3\] \| gyro"),
    (signals(5001), "acc must have 1 to 5000 frames.*try (windows|smaller)"),
    (
        changed(initial_rotation=np.ones((1, 4), np.float32)),
        "initial_rotation must be unit quaternions x, y, z, w, got a norm of 2",
    ),
    (
        changed(initial_rotation=np.full((1, 4), np.nan, np.float32)),
        r"initial_rotation must be finite, got nan at \[0, 0\]",
    ),
]


@pytest.mark.parametrize("model", ["airimu", "airimu_stream"])
@pytest.mark.parametrize(("given", "problem"), BAD_SIGNALS)
def test_bad_signals_are_refused_by_name(client: Client, model: str, given: Signals, problem: str) -> None:
    turn = Turn(21, start=True) if model == "airimu_stream" else NO_SESSION
    with pytest.raises(InvalidRequest, match=f"{model}: {problem}"):
        client.infer(model, given, turn=turn)
    client.infer("airimu", signals(20))


@pytest.mark.parametrize(
    ("given", "turn", "problem"),
    [
        (signals(5), Turn(999), "session 999 is not open"),
        (signals(5), NO_SESSION, "session id must be given, got none; try airimu"),
        (
            signals(5, batch=2),
            Turn(31, start=True),
            r"acc must have a batch of 1, got shape \[2, 5, 3\]; try one request for each",
        ),
        (chunk_of(signals(5), 0, 0), Turn(31, start=True, end=True), "acc must have 1 to 5000 frames"),
    ],
)
def test_bad_turns_are_refused_by_name(client: Client, given: Signals, turn: Turn, problem: str) -> None:
    with pytest.raises(InvalidRequest, match=f"airimu_stream: {problem}"):
        client.infer("airimu_stream", given, turn=turn)


def test_stream_refuses_what_comes_after_its_end_and_a_late_rotation(client: Client) -> None:
    client.infer("airimu_stream", signals(5), turn=Turn(41, start=True))
    with pytest.raises(InvalidRequest, match="initial_rotation must be given in the first turn of a session"):
        client.infer("airimu_stream", changed(initial_rotation=rotations()), turn=Turn(41))
    with pytest.raises(InvalidRequest, match="acc must have 1 to 5000 frames"):
        client.infer("airimu_stream", chunk_of(signals(5), 0, 0), turn=Turn(41))
    client.infer("airimu_stream", signals(5), turn=Turn(41, end=True))
    with pytest.raises(InvalidRequest, match="session 41 is not open"):
        client.infer("airimu_stream", signals(5), turn=Turn(41))


def test_start_of_a_stream_under_way_begins_it_anew(client: Client) -> None:
    given = signals(60)
    client.infer("airimu_stream", signals(33, seed=5), turn=Turn(51, start=True))
    assert_same(stream_in(client, given, [0, 25, 60], 51), client.infer("airimu", given))


def stub_mib(server: Server, model: str) -> float:
    """Return the resident memory of the process that runs a python model and holds its states."""
    assert server._process is not None
    children = psutil.Process(server._process.pid).children(recursive=True)
    [stub] = [child for child in children if any(f"/{model}/" in part for part in child.cmdline())]
    return stub.memory_info().rss / 2**20


def test_abandoned_streams_are_bounded_and_expire(server: Server, client: Client) -> None:
    options = {"sequence_start": True}
    chunk = signals(40)

    def begin(first: int, count: int) -> list[Any]:
        return async_infer(
            server, "airimu_stream", [(chunk, {"sequence_id": first + i, **options}) for i in range(count)]
        )

    for batch in range(10):  # until the allocators' pools have their size
        begin(1_000_000 + 500 * batch, 500)
    before_mib = stub_mib(server, "airimu_stream")
    answers = [answer for batch in range(20) for answer in begin(2_000_000 + 500 * batch, 500)]
    assert len(answers) == 10_000
    refused = [answer for answer in answers if isinstance(answer, Exception)]
    # 500 at once are too many to wait as well.
    full = [error for error in refused if "requests may wait" not in str(error)]
    assert full
    assert all("all 256 sessions are in use" in str(error) for error in full)
    # 10,000 states of 3 kB would be 30 MB.
    assert stub_mib(server, "airimu_stream") - before_mib < 15

    def is_full() -> bool:
        begin(3_000_000, 500)
        try:
            client.infer("airimu_stream", chunk, turn=Turn(4_000_000, start=True, end=True))
        except Overloaded as error:
            return "sessions are in use" in str(error)
        return False

    wait_until(is_full, "a client is refused")
    wait_until(
        lambda: metric(server, "slipway_sessions_open", "airimu_stream") == 0, "idle streams are freed"
    )
    with pytest.raises(InvalidRequest, match=f"sessions expire after {IDLE_S} s idle"):
        client.infer("airimu_stream", chunk, turn=Turn(1_000_000))
    given = signals(100)
    assert_same(stream_in(client, given, [0, 50, 100], 61), client.infer("airimu", given))


def test_triton_log_has_no_warning_about_our_models(server: Server) -> None:
    assert loading_warnings(server.log_text()) == []


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recording with ground truth, in a folder without earlier results."""
    monkeypatch.chdir(tmp_path)
    return record(tmp_path)


def test_imu_command_corrects_measures_and_draws(
    server: Server, client: Client, recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, plot = recorded / "corrected.csv", recorded / "trajectory.png"
    options = ["--url", server.grpc_url, "--output", str(output), "--plot", str(plot), "--verbose"]
    assert run(["imu", str(recorded), "--checkpoint", "tiny", *options]) == 0
    printed = capsys.readouterr().out
    assert "2500 frames of recorded in 3 windows" in printed
    for label in ("ATE, m", "AOE, degrees", "RTE over 200 frames, m", "ROE over 200 frames, degrees"):
        (line,) = [line for line in printed.splitlines() if line.startswith(label)]
        raw, corrected = map(float, line.removeprefix(label).split())
        assert 0 < raw != corrected > 0
    first = re.search(
        r"served against PyTorch, max abs difference: acc (\S+) m/s², gyro (\S+) rad/s", printed
    )
    assert first is not None
    assert 0 <= max(float(first[1]), float(first[2])) <= BOUND
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert plot.stat().st_size > 20_000

    raw, done = read_recording(recorded), read_recording(output)
    assert raw.truth is not None
    np.testing.assert_array_equal(raw.time_ns, done.time_ns)
    for start in (0, 1000, 2000):
        window = slice(start, start + 1000)
        tensors = {name: getattr(raw, name)[None, window].astype(np.float32) for name in ("acc", "gyro")}
        rotation = raw.truth.rotations[None, start].astype(np.float32)
        answer = client.infer("airimu", {**tensors, "initial_rotation": rotation})
        for name in ("acc", "gyro"):
            expected = getattr(raw, name)[window] + answer[f"correction_{name}"][0]
            np.testing.assert_allclose(getattr(done, name)[window], expected, rtol=1e-9, atol=1e-9)


def test_imu_command_by_a_graph_gives_what_the_server_gives(
    server: Server, repository: Path, recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = repository / "airimu_codenet/1/model.onnx"
    data = str(recorded / "mav0/imu0/data.csv")
    sizes = ["--window-size", "500", "--step-size", "250"]
    found = []
    for where in (["--url", server.http_url, "--protocol", "http"], ["--onnx", str(graph)]):
        output = recorded / f"{len(found)}.csv"
        assert run(["imu", data, *sizes, *where, "-o", str(output)]) == 0
        found.append(np.loadtxt(output, delimiter=",", comments="#"))
    assert "in 9 windows" in capsys.readouterr().out
    assert found[0].shape == found[1].shape == (2500, 13)
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=BOUND)


def test_imu_command_refuses_longer_windows_than_are_served(
    server: Server, recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = recorded / "long"
    assert run(["imu-recording", str(long), "--seconds", "26", "--quiet"]) == 0
    assert run(["imu", str(long), "--url", server.grpc_url, "--window-size", "5200"]) == 2
    assert "acc must have 1 to 5000 frames, got shape [1, 5200, 3]" in capsys.readouterr().err


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_batches_and_streams_are_answered_when_locust_sends_them(
    server: Server, shared: Path, tmp_path: Path, protocol: str
) -> None:
    line = f"--family airimu --users 2 --seconds 3 --session-s 1 --protocol {protocol}"
    done = load_environment(shared).load(tmp_path, url_of(server, protocol).removeprefix("http://"), line)
    for model in ("airimu", "airimu_stream"):
        assert_all_answered(done, model)

"""Jobs of a gateway whose processes, servers and database connections are killed in the middle of work."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gate import Gate, gated
from gateway_faults import Disturber, Site, site, step_until, until
from gateway_fixtures import mp4_frames
from postgres_server import MISSING, PostgresServer, postgres_server, programs
from server_fixtures import any_port, wait_until

from slipway_client import Client, TextToVideoRequest, Video
from slipway_serving.runtime.shutdown import ShutdownStage
from slipway_serving.system.server_folder import runtime_folder_at
from slipway_serving.triton import supervision
from slipway_serving.triton.server import Server

pytestmark = pytest.mark.long

STEPS = 20
SEEDS = 3
FEW, MANY = 8, 50


def direct(server: Server, **fields: object) -> np.ndarray:
    """Return the frames of the same video, made without a gateway and without a disturbance."""
    request = TextToVideoRequest(frames=5, height=32, width=32, **fields)  # type: ignore[arg-type]
    with Client(server.grpc_url) as client:
        (video,) = (event for event in client.generate(request) if isinstance(event, Video))
    return mp4_frames(video.data)


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    """A private PostgreSQL server."""
    if programs() is None:
        pytest.skip(MISSING)
    with postgres_server() as running:
        yield running


@pytest.fixture(scope="module")
def servers(repository: Path) -> Iterator[list[Server]]:
    """Two servers, whose launchers start again what is killed, however often it is."""
    with pytest.MonkeyPatch.context() as patch:
        # A launcher gives up after five deaths within minutes, and the tests kill more often.
        patch.setattr(supervision, "SERVER_STEADY_S", 0.0)
        patch.setattr(supervision, "MODEL_STEADY_S", 0.0)
        with Server(any_port(repository)) as first, Server(any_port(repository)) as second:
            yield [first, second]


@pytest.fixture(scope="module")
def undisturbed(servers: list[Server]) -> list[np.ndarray]:
    """The frames of the videos by seed, as a server alone makes them."""
    return [direct(servers[0], prompt="a lake", seed=seed, steps=STEPS) for seed in range(SEEDS)]


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, PostgresServer | None]]:
    """The address of an empty database of each kind, and PostgreSQL's server."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/jobs.db", None
        return
    running: PostgresServer = request.getfixturevalue("postgres")
    url = running.create_database()
    yield url, running
    running.drop_database(url)


def check_after_faults(place: Site, jobs: int, disturber: Disturber, undisturbed: list[np.ndarray]) -> str:
    """Create jobs while things are killed, wait for their ends, and check all of them.

    Returns:
        Sentence about what was seen.
    """
    place.history.start()
    disturber.start()
    ids = [
        place.create(f"job-{number}", prompt="a lake", seed=number % SEEDS, steps=STEPS)["id"]
        for number in range(jobs)
    ]
    disturber.end()
    ended = [place.until_final(job_id) for job_id in ids]
    place.history.end()
    assert len(set(ids)) == jobs
    assert {row.id for row in place.history.rows()} == set(ids)
    for job in ended:
        if job["status"] == "failed":
            assert job["error"]["code"] in ("server_lost", "worker_lost"), job
            assert job["error"]["message"]
            # Nothing was killed as often as a job may go on from one state.
            assert (job["attempts"], job["state_step"]) == (2, None), job
        else:
            assert job["status"] == "completed", job
            number = ids.index(job["id"])
            assert np.array_equal(mp4_frames(place.video(job["id"])), undisturbed[number % SEEDS]), job
    place.history.check()
    place.check_contents()
    outcomes = [job["status"] for job in ended]
    runs = sum(len({row.worker for row in rows if row.worker}) for rows in place.history.seen.values())
    return (
        f"\n{jobs} jobs, killed {dict(disturber.kills)}: {outcomes.count('completed')} completed,"
        f" {outcomes.count('failed')} failed, {runs} runs, {sum(job['attempts'] for job in ended)} from the"
        " first step"
    )


@pytest.mark.parametrize(("jobs", "rounds"), [(FEW, 1), (MANY, 3)], ids=["few", "many"])
def test_no_job_is_lost_when_processes_are_killed(
    database: tuple[str, PostgresServer | None],
    servers: list[Server],
    undisturbed: list[np.ndarray],
    tmp_path: Path,
    jobs: int,
    rounds: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url, postgres = database
    turns = ["api", "worker", "server", "pipeline", *(["connections"] if postgres else [])] * rounds
    with site(tmp_path, url, servers[:1]) as place:
        place.start("api")
        place.start("worker", "--concurrency", "2")
        disturber = Disturber(place, turns, postgres)
        told = check_after_faults(place, jobs, disturber, undisturbed)
    with capsys.disabled():
        print(told)
    assert sum(disturber.kills.values()) == len(turns)


@pytest.mark.parametrize(("jobs", "rounds"), [(FEW, 1), (MANY, 3)], ids=["few", "many"])
def test_no_job_is_lost_when_one_of_each_two_is_killed(
    postgres: PostgresServer,
    servers: list[Server],
    undisturbed: list[np.ndarray],
    tmp_path: Path,
    jobs: int,
    rounds: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = postgres.create_database()
    turns = ["worker", "server", "api", "connections", "pipeline"] * rounds
    with site(tmp_path, url, servers) as place:
        for role in ("api", "api", "worker", "worker"):
            place.start(role, "--concurrency", "2")
        disturber = Disturber(place, turns, postgres)
        told = check_after_faults(place, jobs, disturber, undisturbed)
    with capsys.disabled():
        print(told)
    assert sum(disturber.kills.values()) == len(turns)


def test_jobs_go_on_on_the_other_worker_when_one_is_told_to_stop(
    database: tuple[str, PostgresServer | None], gated_server: tuple[Server, Gate], tmp_path: Path
) -> None:
    server, gate = gated_server
    gate.let(0)
    with site(tmp_path, database[0], [server]) as place:
        place.history.start()
        place.start("api")
        old = place.start("worker", "--concurrency", "2")
        ids = [
            place.create(f"job-{seed}", prompt="a lake", seed=seed, steps=STEPS, guidance_scale=1)["id"]
            for seed in range(2)
        ]
        step_until(lambda: [row.state_step for row in place.history.rows()] == [2, 2], [gate], place)
        place.start("worker", "--concurrency", "2")
        assert old.process is not None
        old.process.send_signal(signal.SIGTERM)
        step_until(lambda: old.process is not None and old.process.poll() is not None, [gate], place)
        assert old.process.wait() == 0, old.text()
        given_back = place.history.rows()
        assert all((row.state_step or 0) > 2 for row in given_back), given_back
        gate.open()
        ended = [place.until_final(job_id) for job_id in ids]
        place.history.end()
        for seed, job in enumerate(ended):
            assert (job["status"], job["attempts"]) == ("completed", 1), job
            alone = direct(server, prompt="a lake", seed=seed, steps=STEPS, guidance_scale=1)
            assert np.array_equal(mp4_frames(place.video(job["id"])), alone)
            workers = {row.process for row in place.history.seen[job["id"]] if row.worker}
            assert len(workers) == 2, place.history.seen[job["id"]]
        place.history.check()
        place.check_contents()


def test_no_step_is_repeated_when_a_server_drains(repository: Path, tmp_path: Path) -> None:
    places = [gated(repository, tmp_path / name, spares=True) for name in ("first", "second")]
    gates = [gate for _, gate in places]
    with (
        Server(any_port(places[0][0], exit_timeout_s=300, on_stop="checkpoint")) as first,
        Server(any_port(places[1][0])) as second,
        site(tmp_path, f"sqlite:///{tmp_path}/jobs.db", [first, second]) as place,
    ):
        place.history.start()
        place.start("api")
        place.start("worker", "--concurrency", "1")
        gates[1].open()
        ids = [
            place.create(f"job-{seed}", prompt="a lake", seed=seed, steps=STEPS, guidance_scale=1)["id"]
            for seed in range(2)
        ]
        # One job goes to each server, and only that of the first one waits at its gate.
        until(
            lambda: sorted(row.status for row in place.history.rows()) == ["completed", "in_progress"],
            "one job on each server",
            place,
        )
        step_until(lambda: any(row.is_in_the_middle for row in place.history.rows()), gates[:1], place)
        stopping = threading.Thread(target=first.stop)
        folder = runtime_folder_at(first.config.metrics_port)
        assert folder is not None
        stopping.start()
        wait_until((folder / ShutdownStage.PIPELINES_STOP.value).exists, "the server stops its videos")
        gates[0].open()
        ended = [place.until_final(job_id) for job_id in ids]
        stopping.join()
        place.history.end()
        calls = sum(gate.calls for gate in gates)
        alone = [
            direct(second, prompt="a lake", seed=seed, steps=STEPS, guidance_scale=1) for seed in range(2)
        ]
        for job, expected in zip(ended, alone, strict=True):
            assert (job["status"], job["attempts"]) == ("completed", 1), job
            assert np.array_equal(mp4_frames(place.video(job["id"])), expected)
        # Both videos once more took as many calls as both jobs.
        assert sum(gate.calls for gate in gates) == 2 * calls
        place.history.check()
        place.check_contents()


def test_no_worker_is_idle_when_jobs_wait(postgres: PostgresServer, repository: Path, tmp_path: Path) -> None:
    repositories = [gated(repository, tmp_path / name) for name in ("first", "second")]
    gates = [gate for _, gate in repositories]
    with (
        Server(any_port(repositories[0][0])) as first,
        Server(any_port(repositories[1][0])) as second,
        site(tmp_path, postgres.create_database(), [first, second]) as place,
    ):
        for role in ("api", "api", "worker", "worker"):
            place.start(role, "--concurrency", "1")
        ids = [
            place.create(f"job-{number}", seed=number, prompt="a lake", steps=4)["id"] for number in range(12)
        ]

        def running() -> list[int]:
            """Return the number of running jobs of each worker."""
            processes = [row.process for row in place.history.rows() if row.status == "in_progress"]
            return sorted(processes.count(process) for process in set(processes))

        def waiting() -> int:
            return sum(row.status == "queued" for row in place.history.rows())

        while (before := waiting()) > 0:
            # Each worker has one place on each server, and the shut gates keep its jobs there.
            until(lambda: running() == [2, 2] or waiting() < 1, "each worker has two jobs", place)
            step_until(lambda before=before: waiting() < before, gates, place)  # type: ignore[misc]
        for gate in gates:
            gate.open()
        assert {place.until_final(job_id)["status"] for job_id in ids} == {"completed"}
        place.check_contents()

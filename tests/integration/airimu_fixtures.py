"""AirIMU, exported once for a whole test run; signals, requests, and what corrections must equal."""

from __future__ import annotations

import queue
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
import tritonclient.grpc as triton
from google.protobuf import text_format
from server_fixtures import infer_input, wait_until
from tiny_exports import exported_once
from tritonclient.grpc import model_config_pb2 as pb

from slipway_cli.root import run
from slipway_client import Client, Turn
from slipway_export.families.airimu.network import Network, Whole
from slipway_export.repository.queues import QueueLimits
from slipway_export.spec import Axis
from slipway_serving.triton.server import Server

CORRECTIONS = ["correction_acc", "correction_gyro"]
OUTPUTS = ["corrected_acc", "corrected_gyro", *CORRECTIONS, "acc_cov", "gyro_cov"]
BOUND = 1e-6
MAX_SESSIONS, IDLE_S = 256, 10
Array = np.ndarray[Any, Any]
Signals = dict[str, Array]


def small_repository(shared: Path, folder: Path) -> Path:
    """Copy the repository into a folder, with few streams and a short wait: both ends can be reached."""
    # A step graph that is short, so that long chunks take several runs.
    axes = (Axis("frames", 1, 1000, 5000), Axis("steps", 1, 12, 64))
    # 48 are sent at once, of which none may be refused.
    exported, _ = exported_once(shared, "airimu", "tiny", axes=axes, queues=QueueLimits(requests=64))
    repository = Path(shutil.copytree(exported, folder / "repository"))
    config = repository / "airimu_stream/config.pbtxt"
    parsed = text_format.Parse(config.read_text(), pb.ModelConfig())
    for name, value in (("max_sessions", MAX_SESSIONS), ("session_idle_s", IDLE_S)):
        assert name in parsed.parameters
        parsed.parameters[name].string_value = str(value)
    config.write_text(text_format.MessageToString(parsed))
    return repository


def record(folder: Path) -> Path:
    """Make 12.5 s of a recording in EuRoC's layout, with ground truth; return its folder."""
    recorded = folder / "recorded"
    assert run(["imu-recording", str(recorded), "--seconds", "12.5", "--seed", "3", "--quiet"]) == 0
    return recorded


def signals(frames: int, batch: int = 1, seed: int = 0) -> Signals:
    random = np.random.default_rng([seed, frames])
    acc = random.standard_normal((batch, frames, 3)) + np.array([0, 0, 9.81])
    gyro = random.standard_normal((batch, frames, 3))
    return {"acc": acc.astype(np.float32), "gyro": gyro.astype(np.float32)}


def rotations(batch: int = 1) -> Array:
    quaternions = np.random.default_rng(batch).standard_normal((batch, 4))
    return (quaternions / np.linalg.norm(quaternions, axis=1, keepdims=True)).astype(np.float32)


def by_torch(network: Network, given: Signals, up: Array) -> list[Array]:
    """The network's own pass after nine frames of rest, in which gravity is along `up` [batch, 3]."""
    lead_acc = np.repeat(9.81007 * up[:, None], 9, axis=1).astype(np.float32)
    acc = np.concatenate([lead_acc, given["acc"]], axis=1)
    gyro = np.concatenate([np.zeros_like(lead_acc), given["gyro"]], axis=1)
    with torch.no_grad():
        return [x.numpy() for x in Whole(network)(torch.from_numpy(acc), torch.from_numpy(gyro))]


def up_of(quaternions: Array) -> Array:
    """The world's z in the body's frame, by pypose, which upstream pads with."""
    import pypose

    return (pypose.SO3(torch.from_numpy(quaternions)).Inv() * torch.tensor([0.0, 0.0, 1.0])).numpy()


def chunk_of(given: Signals, start: int, stop: int) -> Signals:
    return {name: array[:, start:stop] for name, array in given.items()}


def joined(parts: list[dict[str, Array]]) -> dict[str, Array]:
    return {name: np.concatenate([part[name] for part in parts], axis=1) for name in OUTPUTS}


def assert_same(actual: dict[str, Array], expected: dict[str, Array]) -> None:
    for name in OUTPUTS:
        assert actual[name].shape == expected[name].shape
        np.testing.assert_allclose(actual[name], expected[name], rtol=0, atol=BOUND, err_msg=name)


def stream_in(client: Client, given: Signals, cuts: list[int], sequence: int | str) -> dict[str, Array]:
    frames = given["acc"].shape[1]
    parts = []
    for start, stop in pairwise(cuts):
        turn = Turn(sequence, start=start == 0, end=stop == frames)
        parts.append(client.infer("airimu_stream", chunk_of(given, start, stop), turn=turn))
    return joined(parts)


def url_of(server: Server, protocol: str) -> str:
    return server.grpc_url if protocol == "grpc" else server.http_url


def async_infer(server: Server, model: str, requests: list[tuple[Signals, dict[str, Any]]]) -> list[Any]:
    """Send requests without waiting in between; return results or errors in order."""
    answers: queue.Queue[tuple[int, Any]] = queue.Queue()
    with triton.InferenceServerClient(server.grpc_url) as client:
        for index, (arrays, options) in enumerate(requests):
            inputs = [infer_input(name, array) for name, array in arrays.items()]

            def put(result: Any, error: Any, index: int = index) -> None:
                answers.put((index, error if error is not None else result))

            client.async_infer(model, inputs, callback=put, **options)
        got = dict(answers.get(timeout=120) for _ in requests)
    return [got[index] for index in range(len(requests))]


def statistics(server: Server, model: str) -> tuple[int, int]:
    """Return the number of inferences and of executions of a model."""
    answer = httpx.get(f"http://{server.http_url}/v2/models/{model}/stats", trust_env=False)
    (stats,) = answer.json()["model_stats"]
    return int(stats["inference_count"]), int(stats["execution_count"])


def settled(server: Server, model: str) -> tuple[int, int]:
    """Return the counters when they stand still: Triton counts a request after it has answered it."""
    reads = [statistics(server, model)]

    def still() -> bool:
        reads.append(statistics(server, model))
        return len(reads) > 5 and len(set(reads[-5:])) == 1

    wait_until(still, f"the counters of {model} stand still")
    return reads[-1]


def further(server: Server, model: str, before: tuple[int, int], requests: int) -> int:
    """Return by how many executions so many further requests were answered, once they are counted."""
    wait_until(lambda: statistics(server, model)[0] - before[0] >= requests, f"{requests} of {model} counted")
    inferences, executions = settled(server, model)
    assert inferences - before[0] == requests
    return executions - before[1]

"""Hashes of what a running server answers to fixed requests, a line each, to compare two versions by.

    slipway export wan_t2v --checkpoint tiny --repository models   (and wakeword, wakeword_head, airimu)
    slipway serve --repository models
    python tests/served_answers.py localhost:8001 > after.txt && diff before.txt after.txt

Speaks tritonclient only, so that the same file runs against any version. Two outputs of the same name are
compared by their bytes; outputs that tell the time are left out, and so are those that a version added.
Hashes of one machine are not those of another: kernels differ by CPU.
"""

from __future__ import annotations

import hashlib
import itertools
import queue
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import np_to_triton_dtype

VIDEO: dict[str, Any] = {
    "prompt": "A serene lake at sunset", "negative_prompt": "blurry", "frames": 17, "height": 64, "width": 96,
    "steps": 6, "guidance_scale": 4.0, "flow_shift": 5.0, "seed": 7,
}  # fmt: skip
VIDEOS: dict[str, dict[str, Any]] = {
    "mp4": {"output": "video", "fps": 12, "guidance_scale_2": 3.0},
    "base64": {"output": "video_base64", "frames": 5, "steps": 2},
    "frames": {"output": "frames", "preview": True},
    "frames-33": {"output": "frames", "frames": 33, "height": 128, "width": 128, "steps": 3},
    "one-frame": {"output": "frames", "frames": 1, "guidance_scale": 1.0, "seed": 3},
    "interval": {"output": "frames", "guidance_start": 0.2, "guidance_stop": 0.6},
}
TOLD = ("step", "steps", "chunk", "chunks", "preview", "frames", "video")


def tensor(name: str, value: Any) -> triton.InferInput:
    """Return an input; a scalar becomes a tensor of shape [1]."""
    if not isinstance(value, np.ndarray):
        kinds = {str: np.object_, bool: np.bool_, int: np.int64, float: np.float32}
        value = np.array([value.encode() if isinstance(value, str) else value], kinds[type(value)])
    made = triton.InferInput(name, list(value.shape), np_to_triton_dtype(value.dtype))
    made.set_data_from_numpy(value)
    return made


def stream(
    client: triton.InferenceServerClient, model: str, fields: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield the responses to one request of a decoupled model."""
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    inputs = [tensor(name, value) for name, value in fields.items()]
    client.async_stream_infer(model, inputs, enable_empty_final_response=True)
    try:
        while True:
            result, error = answers.get(timeout=300)
            if error is not None:
                raise error
            response = result.get_response()
            if response.outputs:
                yield {output.name: result.as_numpy(output.name) for output in response.outputs}
            if response.parameters["triton_final_response"].bool_param:
                return
    finally:
        client.stop_stream()


def add(digest: Any, arrays: dict[str, Any]) -> None:
    """Hash arrays with their names and shapes."""
    for name in sorted(arrays):
        array = arrays[name]
        raw = b"|".join(array.ravel().tolist()) if array.dtype == np.object_ else array.tobytes()
        digest.update(f"{name} {array.dtype} {array.shape} ".encode() + raw)


def videos(client: triton.InferenceServerClient) -> Iterator[tuple[str, str]]:
    """Yield a hash for each video, of its responses as they come."""
    for name, changes in VIDEOS.items():
        digest = hashlib.sha256()
        for response in stream(client, "wan_t2v", VIDEO | changes):
            add(digest, {key: value for key, value in response.items() if key in TOLD})
        yield f"wan_t2v {name}", digest.hexdigest()


def one(
    client: triton.InferenceServerClient, model: str, arrays: dict[str, Any], **turn: Any
) -> dict[str, Any]:
    """Call a model that answers once."""
    result = client.infer(model, [tensor(name, array) for name, array in arrays.items()], **turn)
    return {output.name: result.as_numpy(output.name) for output in result.get_response().outputs}


def signals(client: triton.InferenceServerClient) -> Iterator[tuple[str, str]]:
    """Yield a hash for each answer of the wake words and of AirIMU."""
    random = np.random.default_rng(5)
    audio = (random.standard_normal((3, 16_000)) * 0.1).clip(-1, 1).astype(np.float32)
    rate = np.full((3, 1), 16_000, np.int64)
    pcm = (random.standard_normal((1, 50_000)) * 3000).astype(np.int16)
    acc = (random.standard_normal((2, 1500, 3)) + np.array([0, 0, 9.8])).astype(np.float32)
    gyro = (random.standard_normal((2, 1500, 3)) * 0.3).astype(np.float32)
    rotation = np.array([[0, 0, 0, 1], [0.6, 0, 0, 0.8]], np.float32)
    whole = {
        "wakeword": {"audio": audio, "sample_rate": rate},
        "airimu": {"acc": acc, "gyro": gyro, "initial_rotation": rotation},
    }
    for model, arrays in whole.items():
        digest = hashlib.sha256()
        add(digest, one(client, model, arrays))
        yield model, digest.hexdigest()
    streams: dict[str, dict[str, Any]] = {
        "wakeword_stream": {"pcm": pcm},
        "airimu_stream": {"acc": acc[:1], "gyro": gyro[:1]},
    }
    for model, arrays in streams.items():
        digest = hashlib.sha256()
        length = next(iter(arrays.values())).shape[1]
        cuts = [0, 100, length // 3, length // 2, length]
        for index, (start, stop) in enumerate(itertools.pairwise(cuts)):
            piece = {name: array[:, start:stop] for name, array in arrays.items()}
            turn = {"sequence_id": 42, "sequence_start": index == 0, "sequence_end": stop == length}
            add(digest, one(client, model, piece, **turn))
        yield model, digest.hexdigest()


def main() -> None:
    """Ask the server at the address that is given."""
    with triton.InferenceServerClient(sys.argv[1]) as client:
        for source in (videos, signals):
            for name, digest in source(client):
                print(f"{digest}  {name}", flush=True)


if __name__ == "__main__":
    main()

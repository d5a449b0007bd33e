"""Bad input over both protocols: a clear error before any denoising, and a healthy server after it."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from slipway_client import Client, TextToVideoRequest, Video
from slipway_serving.triton.server import Server

GOOD: dict[str, Any] = {"prompt": "a lake", "frames": 5, "height": 32, "width": 32, "steps": 2}
DTYPES = {str: ("BYTES", np.object_), bytes: ("BYTES", np.object_), int: ("INT64", np.int64)}


def tensor(name: str, value: Any) -> grpcclient.InferInput:
    datatype, dtype = DTYPES.get(type(value), ("FP32", np.float32))
    array = np.array([value.encode() if isinstance(value, str) else value], dtype=dtype)
    made = grpcclient.InferInput(name, [1], datatype)
    made.set_data_from_numpy(array)
    return made


def ask(server: Server, inputs: list[grpcclient.InferInput], **parameters: Any) -> list[Any]:
    """Send raw tensors to wan_t2v; return the results, or raise the first error."""
    answers: queue.Queue[Any] = queue.Queue()
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: answers.put(error or result))
        client.async_stream_infer("wan_t2v", inputs, enable_empty_final_response=True, parameters=parameters)
        results = []
        while True:
            answer = answers.get(timeout=60)
            if isinstance(answer, InferenceServerException):
                raise answer
            results.append(answer)
            if answer.get_response().parameters["triton_final_response"].bool_param:
                return results


def ask_http(server: Server, fields: dict[str, Any]) -> tuple[int, str]:
    url = f"http://{server.http_url}/v2/models/wan_t2v/generate_stream"
    answer = httpx.post(url, json=fields, timeout=60)
    return answer.status_code, answer.text


def loops_begun(server: Server) -> int:
    """How many calls the denoisers have had, warm-up and all."""
    metrics = httpx.get(server.metrics_url).text
    return sum(
        int(float(line.rsplit(" ", 1)[1]))
        for line in metrics.splitlines()
        if line.startswith("nv_inference_exec_count") and "denoiser" in line
    )


@pytest.fixture(autouse=True)
def healthy_after(server: Server) -> Iterator[None]:
    """No denoiser was called for the bad request; a good one succeeds after it."""
    before = loops_begun(server)
    yield
    assert loops_begun(server) == before
    assert httpx.get(f"http://{server.http_url}/v2/health/live").status_code == 200
    assert httpx.get(f"http://{server.http_url}/v2/health/ready").status_code == 200
    with Client(server.grpc_url) as client:
        *_, result = client.generate(TextToVideoRequest(**GOOD))
    assert isinstance(result, Video)


BAD_FIELDS = [
    ({"frames": 16}, "frames must be 4k+1 and at least 1, got 16; try 17"),
    ({"frames": 37}, "frames must be 1 to 33, the range of the exported models, got 37"),
    ({"height": 50}, "height must be a multiple of 16 above 0, got 50; try 48"),
    ({"height": 144}, "height must be 32 to 128 px, the range of the exported models, got 144"),
    ({"width": 16}, "width must be 32 to 128 px"),
    ({"steps": 0}, "steps must be 1 to 100, got 0; try 1"),
    ({"guidance_scale": float("nan")}, "guidance_scale must be 0 to 1000, got nan"),
    ({"guidance_scale": float("inf")}, "guidance_scale must be 0 to 1000, got inf"),
    ({"guidance_scale": 1.0, "guidance_scale_2": 3.0}, "guidance_scale_2 must be at most 1"),
    ({"flow_shift": 0.0}, "flow_shift must be 0.001 to 1000, got 0.0; try 0.001"),
    ({"flow_shift": 1e-45}, "flow_shift must be 0.001 to 1000, got 1e-45; try 0.001"),
    ({"flow_shift": 3e38}, "flow_shift must be 0.001 to 1000, got 3e+38; try 1000"),
    ({"guidance_scale": 3e38}, "guidance_scale must be 0 to 1000, got 3e+38; try 1000"),
    ({"guidance_scale_2": 3e38}, "guidance_scale_2 must be 0 to 1000, got 3e+38; try 1000"),
    ({"seed": -1}, "seed must be 0 to 4294967295, got -1; try 0"),
    ({"fps": 0}, "fps must be 1 to 120, got 0"),
    ({"output": "gif"}, "output must be one of video, video_base64, frames, frames_base64, got 'gif'"),
    ({"timeout_s": -1.0}, "timeout_s must be above 0 and at most 2592000, got -1.0"),
    ({"prompt": "x" * 2**20}, "prompt must be at most 16384 characters, got 1048576 characters"),
    ({"prompt": "lake " * 1000}, "prompt must be at most 512 tokens"),
    ({"negative_prompt": "lake " * 1000}, "negative_prompt: wan_t2v_tokenizer: prompt must be at most 512"),
    ({"prompt": "a\0b"}, "prompt must be text without NUL, got one at character 1"),
    ({"prompt": b"a\xff\xfe"}, "prompt must be UTF-8 text, got byte 0xff at offset 1"),
    ({"frames": 16, "seed": -1, "height": 50}, "seed must be"),
]


@pytest.mark.parametrize(("fields", "message"), BAD_FIELDS, ids=lambda value: repr(value)[:60])
def test_bad_field_is_refused_by_name_over_grpc(server: Server, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InferenceServerException) as refusal:
        ask(server, [tensor(name, value) for name, value in (GOOD | fields).items()])
    assert "[INVALID_ARGUMENT] wan_t2v: " in refusal.value.message()
    assert message in refusal.value.message()
    assert "Traceback" not in refusal.value.message()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"frames": 16}, "frames must be 4k+1"),
        ({"steps": 0}, "steps must be 1 to 100"),
        ({"seed": -1}, "seed must be 0 to"),
        ({"prompt": "x" * 2**20}, "prompt must be at most 16384 characters"),
        ({"prompt": "a\0b"}, "prompt must be text without NUL"),
        ({"height": 4096}, "height must be 32 to 128 px"),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_bad_field_is_refused_by_name_over_http(server: Server, fields: dict[str, Any], message: str) -> None:
    _, text = ask_http(server, GOOD | fields)
    assert message in text
    assert "Traceback" not in text


def test_all_bad_fields_are_named_at_once(server: Server) -> None:
    bad = GOOD | {"frames": 16, "seed": -1, "height": 50}
    with pytest.raises(InferenceServerException) as refusal:
        ask(server, [tensor(name, value) for name, value in bad.items()])
    for name in ("frames", "seed", "height"):
        assert f"{name} must be" in refusal.value.message()


def test_missing_input_is_refused_by_name(server: Server) -> None:
    with pytest.raises(InferenceServerException, match="prompt"):
        ask(server, [tensor("frames", 5)])


def test_unknown_tensor_is_refused_by_name(server: Server) -> None:
    with pytest.raises(InferenceServerException, match="cfg_scale"):
        ask(server, [tensor(name, value) for name, value in (GOOD | {"cfg_scale": 1.0}).items()])


def test_unknown_parameter_is_refused_by_name_over_grpc(server: Server) -> None:
    with pytest.raises(InferenceServerException, match="cfg_scale"):
        ask(server, [tensor(name, value) for name, value in GOOD.items()], cfg_scale="3")


def test_unknown_field_is_refused_by_name_over_http(server: Server) -> None:
    _, text = ask_http(server, GOOD | {"cfg_scale": 3})
    assert "cfg_scale" in text
    assert "INVALID_ARGUMENT" in text


def test_wrong_dtype_is_refused_by_name(server: Server) -> None:
    wrong = grpcclient.InferInput("frames", [1], "FP32")
    wrong.set_data_from_numpy(np.array([5.0], dtype=np.float32))
    with pytest.raises(InferenceServerException, match="frames"):
        ask(server, [tensor("prompt", "a lake"), wrong])


def test_wrong_shape_is_refused_by_name(server: Server) -> None:
    wrong = grpcclient.InferInput("frames", [2], "INT64")
    wrong.set_data_from_numpy(np.array([5, 5], dtype=np.int64))
    with pytest.raises(InferenceServerException, match="frames"):
        ask(server, [tensor("prompt", "a lake"), wrong])

"""Sizes outside the exported axes, sent to inner graphs directly, are refused by name."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from slipway_serving.triton.server import Server

pytestmark = pytest.mark.python_graphs


@pytest.fixture(autouse=True)
def healthy_after(server: Server) -> Iterator[None]:
    yield
    for state in ("live", "ready"):
        assert httpx.get(f"http://{server.http_url}/v2/health/{state}", trust_env=False).status_code == 200


def latents(*shape: int) -> grpcclient.InferInput:
    made = grpcclient.InferInput("latents", list(shape), "FP32")
    made.set_data_from_numpy(np.zeros(shape, np.float32))
    return made


def infer(server: Server, model: str, **arrays: Any) -> InferenceServerException:
    """Send arrays to a model; return the refusal."""
    inputs = []
    for name, array in arrays.items():
        datatype = {"float32": "FP32", "int64": "INT64"}[str(array.dtype)]
        inputs.append(grpcclient.InferInput(name, list(array.shape), datatype))
        inputs[-1].set_data_from_numpy(array)
    with (
        grpcclient.InferenceServerClient(server.grpc_url) as client,
        pytest.raises(InferenceServerException) as refusal,
    ):
        client.infer(model, inputs)
    return refusal.value


@pytest.mark.parametrize(
    ("rows", "tokens", "problem"),
    [
        (
            1,
            8192,
            "wan_t2v_text_encoder: input_ids must have 1 to 512 for tokens, the exported range, got 8192",
        ),
        (1, 0, "wan_t2v_text_encoder: input_ids must have 1 to 512 for tokens, the exported range, got 0"),
        (9, 4, "batch-size must be <= 8 for 'wan_t2v_text_encoder'"),
    ],
)
def test_text_encoder_refuses_more_than_its_axes_have(
    server: Server, rows: int, tokens: int, problem: str
) -> None:
    ids = np.ones((rows, tokens), np.int64)
    refusal = infer(server, "wan_t2v_text_encoder", input_ids=ids, attention_mask=ids)
    assert refusal.status() == "StatusCode.INVALID_ARGUMENT"
    assert problem in refusal.message()


def test_text_encoder_refuses_inputs_that_differ_in_an_axis(server: Server) -> None:
    ids = np.ones((1, 8), np.int64)
    refusal = infer(server, "wan_t2v_text_encoder", input_ids=ids, attention_mask=ids[:, :7])
    assert refusal.status() == "StatusCode.INVALID_ARGUMENT"
    assert "attention_mask must have 8 for tokens as input_ids has, got 7" in refusal.message()


@pytest.mark.parametrize("height", [5, 2, 18, 400])
def test_denoiser_refuses_a_size_that_its_axes_do_not_give(server: Server, height: int) -> None:
    refusal = infer(
        server,
        "wan_t2v_denoiser_high",
        hidden_states=np.zeros((1, 16, 2, height, 4), np.float32),
        timestep=np.ones((1, 1), np.float32),
        encoder_hidden_states=np.zeros((1, 512, 32), np.float32),
    )
    assert refusal.status() == "StatusCode.INVALID_ARGUMENT"
    assert (
        "wan_t2v_denoiser_high: hidden_states must have 2*token_height in dimension 3 where token_height is 2"
        f" to 8, the exported range, got {height}" in refusal.message()
    )


@pytest.mark.parametrize("height", [5, 2, 64])
@pytest.mark.parametrize("session", [0, 4711])
def test_decoder_refuses_latents_of_a_size_that_its_axes_do_not_give(
    server: Server, height: int, session: int
) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    turn = {"sequence_id": session, "sequence_start": True} if session else {}
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: answers.put(error or result))
        client.async_stream_infer("wan_t2v_vae_decoder", [latents(1, 16, 1, height, 4)], **turn)
        refusal = answers.get(timeout=60)
    assert isinstance(refusal, InferenceServerException)
    assert (
        "[INVALID_ARGUMENT] wan_t2v_vae_decoder: latents must have 2*token_height in dimension 3 where"
        f" token_height is 2 to 8, the exported range, got {height}" in refusal.message()
    )

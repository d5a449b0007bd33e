"""Precisions and places of single components, a text encoder on another server, answers from the cache."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import onnx
import pytest
import tritonclient.grpc as triton
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from slipway_client import Client, RetryPolicy, TextToVideoRequest, Video
from slipway_export.families import family_named
from slipway_export.options import ExportOptions
from slipway_export.repository.placement import Placement
from slipway_export.run import run_export
from slipway_export.spec import Precision
from slipway_serving.protocol.errors import NotReady
from slipway_serving.runtime.program import text_tensor
from slipway_serving.triton.server import Server, ServerConfig

pytestmark = pytest.mark.long

WAN = family_named("wan_t2v")
PROMPT, ENCODER = "wan_t2v_prompt", "wan_t2v_text_encoder"
_WAIT_S = 30.0


def test_component_has_the_precision_and_the_place_that_were_asked_for_it(
    checkpoint: Path, tmp_path: Path
) -> None:
    options = ExportOptions(
        checkpoint=str(checkpoint),
        repository=tmp_path / "models",
        components=("text_encoder",),
        precisions={"text_encoder": Precision.INT8},
        placements={"text_encoder": Placement.parse("2xgpu:1")},
    )
    run_export(WAN, options)
    model = tmp_path / "models" / ENCODER
    facts = json.loads((model / "manifest.json").read_text())
    assert facts["precision"] == {"model": "int8"}
    assert facts["place"] == {"device": "gpu", "gpus": [1], "instances": 2}
    config = text_format.Parse((model / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
    (group,) = config.instance_group
    assert (group.kind, [*group.gpus], group.count) == (group.KIND_GPU, [1], 2)
    operators = {node.op_type for node in onnx.load(model / "1/model.onnx").graph.node}
    assert "MatMulNBits" in operators
    assert "MatMulInteger" not in operators
    # Every token's embedding counts, not only the whole tensor.
    assert all(row["row_cosine"] >= row["bound"]["row_cosine"] > 0.99 for row in facts["parity"])


@pytest.fixture(scope="module")
def pool(
    repository: Path, server: Server, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A repository of the prompt model, whose text encoder is on the shared server."""
    models = tmp_path_factory.mktemp("pool") / "models"
    for name in (PROMPT, "wan_t2v_tokenizer"):
        shutil.copytree(repository / name, models / name)
    options = ExportOptions(
        checkpoint=str(checkpoint),
        repository=models,
        components=("text_encoder",),
        placements={"text_encoder": Placement.parse(f"grpc://{server.grpc_url}")},
    )
    result = run_export(WAN, options)
    assert (result.rows, result.models) == ((), (ENCODER,))
    manifest = json.loads((models / ENCODER / "manifest.json").read_text())
    assert manifest["place"] == {"server": server.grpc_url, "instances": 1}
    assert not list(models.rglob("*.onnx*"))
    return models


@pytest.fixture(scope="module")
def pool_server(pool: Path) -> Iterator[Server]:
    config = ServerConfig(pool, http_port=0, grpc_port=0, metrics_port=0, response_cache_mib=1)
    with Server(config) as running:
        yield running


def embed(server: Server, prompt: str) -> tuple[bytes, tuple[int, ...]]:
    """Return the bytes and the shape of a prompt's embeddings; what is refused is not asked again."""
    with Client(server.grpc_url, retry=RetryPolicy(budget_s=0)) as client:
        found = client.infer(PROMPT, {"prompt": text_tensor(prompt)})["prompt_embeds"]
    return found.tobytes(), found.shape


def metric(server: Server, name: str) -> float:
    """Return the value of a metric; 0 where it is not there."""
    text = httpx.get(server.metrics_url, trust_env=False).text
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def executions(server: Server) -> float:
    return metric(server, f'nv_inference_exec_count{{model="{ENCODER}",version="1"}}')


def hits(server: Server) -> float:
    return metric(server, f'nv_cache_num_hits_per_model{{model="{ENCODER}",version="1"}}')


def test_embeddings_are_the_same_bytes_when_another_server_or_the_cache_gives_them(
    server: Server, pool_server: Server
) -> None:
    prompt = "a lighthouse in the fog, asked of another server"
    before = executions(server), hits(pool_server), hits(server)
    expected = embed(pool_server, prompt)
    assert (executions(server), hits(pool_server)) == (before[0] + 1, before[1])
    assert embed(pool_server, prompt) == expected
    assert (executions(server), hits(pool_server), hits(server)) == (before[0] + 1, before[1] + 1, before[2])
    # The shared server has its own cache.
    assert embed(server, prompt) == expected
    assert (executions(server), hits(server)) == (before[0] + 1, before[2] + 1)


def embed_only(server: Server, prompt: str) -> None:
    """Ask for one of the two outputs of the prompt model."""
    sent = triton.InferInput("prompt", [1, 1], "BYTES")
    sent.set_data_from_numpy(text_tensor(prompt))
    with triton.InferenceServerClient(server.grpc_url) as client:
        client.infer(PROMPT, [sent], outputs=[triton.InferRequestedOutput("prompt_embeds")])


def test_video_is_made_when_someone_asked_for_one_output_of_its_prompt_before(server: Server) -> None:
    prompt = "a prompt that one caller asks in part"
    for text in (prompt, ""):
        embed_only(server, text)
    request = TextToVideoRequest(prompt=prompt, negative_prompt="", frames=5, height=32, width=32, steps=2)
    with Client(server.grpc_url) as client:
        *_, video = client.generate(request)
    assert isinstance(video, Video)


def test_server_says_what_an_old_export_lacks_and_serves_it(repository: Path, tmp_path: Path) -> None:
    models = tmp_path / "models"
    for name in (PROMPT, "wan_t2v_tokenizer", ENCODER):
        shutil.copytree(repository / name, models / name)
    with (models / PROMPT / "config.pbtxt").open("a") as file:
        file.write("response_cache { enable: true }\n")
    encoder = models / ENCODER / "config.pbtxt"
    parsed = text_format.Parse(encoder.read_text(), model_config_pb2.ModelConfig())
    del parsed.parameters["axes"]
    encoder.write_text(text_format.MessageToString(parsed))
    said: list[str] = []
    config = ServerConfig(models, http_port=0, grpc_port=0, metrics_port=0)
    with Server(config, warn=said.append) as running:
        expected = embed(running, "a lake")
        embed_only(running, "a lighthouse")
        assert embed(running, "a lighthouse") != expected
        assert embed(running, "a lake") == expected
    assert said == [
        f"sizes of inputs are not limited for {ENCODER}: the configurations have no axis ranges;"
        " export these models again",
        f"the response cache is off: Triton's cache gives wrong answers for {PROMPT}, which enables it for"
        " more than one output; export these models again",
    ]


def test_cache_forgets_the_oldest_prompts_when_it_is_full(pool_server: Server) -> None:
    # An embedding of 460 tokens of width 32 is 58 KiB, of which 1 MiB holds no more than 18.
    long = " ".join(["lake"] * 230)
    answers = {text: embed(pool_server, text) for text in (f"{number} {long}" for number in range(24))}
    deadline = time.monotonic() + _WAIT_S
    while not metric(pool_server, "nv_cache_num_evictions") and time.monotonic() < deadline:
        embed(pool_server, "poll")
    assert metric(pool_server, "nv_cache_num_evictions") > 0
    assert 0 < metric(pool_server, "nv_cache_util") <= 1
    first = next(iter(answers))
    assert embed(pool_server, first) == answers[first]


def test_pool_says_which_server_is_gone(repository: Path, pool: Path, tmp_path: Path) -> None:
    models = shutil.copytree(pool, tmp_path / "models")
    config = models / ENCODER / "config.pbtxt"
    config.write_text(re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:9", config.read_text()))
    with (
        Server(ServerConfig(models, http_port=0, grpc_port=0, metrics_port=0)) as running,
        pytest.raises(NotReady, match=f"{ENCODER} on 127.0.0.1:9: "),
    ):
        embed(running, "a lake")

"""An ensemble whose package has a configuration alone is placed as Triton loads it."""

from __future__ import annotations

from pathlib import Path

import httpx
from server_fixtures import affine, any_port, tensor, write_model

from slipway_export.repository.load_check import check_loadable
from slipway_export.repository.publish import stage_authored
from slipway_export.spec import AuthoredModel
from slipway_serving.triton.server import Server

TENSORS = tensor("input", "x", "FP32", "[4]") + tensor("output", "y", "FP32", "[4]")
STEP = """
  {{ model_name: "affine" model_version: -1
     input_map {{ key: "x" value: "{x}" }} output_map {{ key: "y" value: "{y}" }} }}
"""


def test_ensemble_without_a_version_folder_answers_when_it_was_staged(tmp_path: Path) -> None:
    source, repository = tmp_path / "package" / "twice", tmp_path / "models"
    source.mkdir(parents=True)
    steps = ",".join((STEP.format(x="x", y="between"), STEP.format(x="between", y="y")))
    (source / "config.pbtxt").write_text(
        f'platform: "ensemble"\nmax_batch_size: 4\n{TENSORS}ensemble_scheduling {{ step [{steps}] }}\n'
    )
    write_model(repository, "affine", affine(), f"max_batch_size: 4\n{TENSORS}")
    stage_authored(AuthoredModel("twice", source=source), repository)
    assert not (source / "1").exists()
    check_loadable(repository, ["twice"], repository)
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [0, 1, 2, 3]}]}
    with Server(any_port(repository)) as server:
        url = f"http://{server.http_url.removeprefix('http://')}/v2/models/twice/infer"
        answer = httpx.post(url, json=body, trust_env=False).raise_for_status().json()
    # 2 x + 1, twice.
    assert answer["outputs"][0]["data"] == [3, 7, 11, 15]

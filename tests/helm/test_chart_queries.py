"""The autoscaler's questions to Prometheus, answered by promtool over made series."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml
from helm_chart import CHART, needs, only, render

KEDA = CHART / "examples" / "keda.yaml"


def queries() -> dict[str, str]:
    triggers = only(render(KEDA), "ScaledObject")["spec"]["triggers"]
    return {trigger["name"]: trigger["metadata"]["query"] for trigger in triggers}


def evaluate(folder: Path, series: dict[str, str], expected: dict[str, float]) -> None:
    """Check what the queries give after ten minutes of series."""
    if not shutil.which("promtool"):
        needs("promtool", "Debian's package prometheus brings it")
    (folder / "none.yml").write_text("groups: []\n")
    test: dict[str, Any] = {
        "rule_files": ["none.yml"],
        "evaluation_interval": "15s",
        "tests": [
            {
                "interval": "15s",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": [
                    {
                        "expr": queries()[name],
                        "eval_time": "10m",
                        "exp_samples": [{"labels": "{}", "value": value}],
                    }
                    for name, value in expected.items()
                ],
            }
        ],
    }
    (folder / "test.yml").write_text(yaml.safe_dump(test))
    done = subprocess.run(
        ["promtool", "test", "rules", "test.yml"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


PENDING = "nv_inference_pending_request_count"
WAITED, COMPUTED = "nv_inference_queue_duration_us", "nv_inference_compute_infer_duration_us"
RUNNING, HELD = "slipway_requests_running", "slipway_requests_waiting"


def of(pod: str, model: str, service: str = "shop-slipway-pods") -> str:
    return f'{{namespace="models",service="{service}",pod="{pod}",model="{model}",version="1"}}'


def test_queries_sum_over_the_pools_own_pods(tmp_path: Path) -> None:
    evaluate(
        tmp_path,
        {
            PENDING + of("a", "video"): "3x50",
            PENDING + of("a", "decoder"): "1x50",  # of a video that is at work
            PENDING + of("b", "video"): "4x50",
            PENDING + of("x", "video", "another-pods"): "100x50",
            RUNNING + of("a", "video"): "2x50",
            RUNNING + of("b", "video"): "1x50",
            RUNNING + of("x", "video", "another-pods"): "100x50",
            WAITED + of("a", "video"): "0+7500000x50",  # half a second waited for each second
            COMPUTED + of("a", "video"): "0+15000000x50",
        },
        {"in-flight": 10, "pending-requests": 8, "queue-compute-ratio": 0.5},
    )


def test_work_under_way_counts_without_a_queue(tmp_path: Path) -> None:
    evaluate(
        tmp_path,
        {PENDING + of("a", "video"): "0x50", RUNNING + of("a", "video"): "2x50"},
        {"in-flight": 2, "pending-requests": 0},
    )


def test_requests_count_once_when_instances_hold_them(tmp_path: Path) -> None:
    evaluate(
        tmp_path,
        {
            PENDING + of("a", "video"): "3x50",
            RUNNING + of("a", "video"): "6x50",  # two at work, four held
            HELD + of("a", "video"): "4x50",
            PENDING + of("a", "word"): "1x50",
            HELD + of("x", "video", "another-pods"): "100x50",
        },
        {"in-flight": 9, "pending-requests": 8},
    )


def test_requests_that_wait_count_where_there_is_no_pipeline(tmp_path: Path) -> None:
    evaluate(tmp_path, {PENDING + of("a", "word"): "5x50"}, {"in-flight": 5, "pending-requests": 5})


def test_queries_give_zero_and_no_division_by_it_when_nothing_happens(tmp_path: Path) -> None:
    names = (PENDING, WAITED, COMPUTED, RUNNING, HELD)
    evaluate(
        tmp_path,
        {name + of("a", "video"): "0x50" for name in names},
        {"in-flight": 0, "pending-requests": 0, "queue-compute-ratio": 0},
    )

"""The files of observability/: promtool takes them, alerts have cases of both kinds, every name is known."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from slipway_gateway.metrics import GatewayMetrics
from slipway_serving.runtime.metrics import METRICS

FOLDER = Path(__file__).resolve().parents[3] / "observability"
RULES = yaml.safe_load((FOLDER / "rules.yml").read_text())
CASES = yaml.safe_load((FOLDER / "rules_test.yml").read_text())["tests"]
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text())
_SUFFIXES = ("_bucket", "_sum", "_count", "")


def rules(kind: str) -> dict[str, str]:
    """Return the expressions of all rules of a kind by name."""
    return {rule[kind]: rule["expr"] for group in RULES["groups"] for rule in group["rules"] if kind in rule}


def queries() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def promtool(*arguments: str, folder: Path = FOLDER) -> subprocess.CompletedProcess[str]:
    if shutil.which("promtool") is None:
        assert not os.environ.get("CI"), "promtool must be installed in CI; try apt-get install prometheus"
        pytest.skip("promtool is not installed; Debian's package prometheus has it")
    command = ["promtool", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "rules.yml"),
        ("test", "rules", "rules_test.yml"),
    ],
    ids=" ".join,
)
def test_promtool_takes_the_files(arguments: tuple[str, ...]) -> None:
    done = promtool(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", sorted(rules("alert")))
def test_cases_fail_when_an_alert_never_fires(name: str, tmp_path: Path) -> None:
    text = (FOLDER / "rules.yml").read_text()
    for rule in (rule for group in RULES["groups"] for rule in group["rules"] if rule.get("alert") == name):
        rule["expr"], kept = f"({rule['expr']}) > 1e9", rule["expr"]
        (tmp_path / "rules.yml").write_text(yaml.safe_dump(RULES))
        rule["expr"] = kept
    assert (tmp_path / "rules.yml").read_text() != text
    # Only this alert's cases: the whole file takes a second each.
    cases = [case for case in CASES if name in str(case.get("alert_rule_test"))]
    whole = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": cases}
    (tmp_path / "cases.yml").write_text(yaml.safe_dump(whole))
    done = promtool("test", "rules", "cases.yml", folder=tmp_path)
    assert done.returncode != 0
    assert f"alertname: {name}" in done.stdout + done.stderr


@pytest.mark.parametrize("name", sorted(rules("alert")))
def test_each_alert_is_shown_to_fire_and_to_stay_silent(name: str) -> None:
    found = [
        (case, check)
        for case in CASES
        for check in case.get("alert_rule_test", [])
        if check["alertname"] == name
    ]
    fires = [case for case, check in found if check.get("exp_alerts")]
    # In a case with a second series, a firing alert is silent about that one: promtool compares all of them.
    silent = [case for case, check in found if not check.get("exp_alerts")]
    silent += [case for case in fires if len(case["input_series"]) > 1]
    assert fires
    assert silent


def names(expression: str) -> set[str]:
    """Return the names of the series that an expression reads."""
    bare = re.sub(r'\{[^}]*\}|"[^"]*"|\b(?:by|on) \([^)]*\)|\[[^\]]*\]', " ", expression)
    words = re.findall(r"[a-zA-Z_][a-zA-Z0-9_:]*", bare)
    return {word for word in words if "_" in word or ":" in word or word == "up"} - _FUNCTIONS


_FUNCTIONS = {"clamp_min", "histogram_quantile"}
# Of Triton 2.51 (its docs/user_guide/metrics.md); test_observability.py sees them in a scrape.
_TRITONS = {
    "nv_cpu_memory_total_bytes",
    "nv_cpu_memory_used_bytes",
    "nv_cpu_utilization",
    "nv_inference_compute_infer_duration_us",
    "nv_inference_exec_count",
    "nv_inference_pending_request_count",
    "nv_inference_queue_duration_us",
    "nv_inference_request_duration_us",
    "nv_inference_request_failure",
    "nv_inference_request_success",
}


def of_the_gateway() -> dict[str, str]:
    """Return the kinds of the gateway's metrics by name, as its page declares them."""
    return dict(re.findall(r"^# TYPE (\S+) (\w+)$", GatewayMetrics().page().decode(), re.MULTILINE))


def test_gateway_declares_metrics_of_its_own_prefix() -> None:
    kinds = of_the_gateway()
    assert len(kinds) > 10 and set(kinds.values()) == {"counter", "gauge", "histogram"}
    assert all(name.startswith("slipway_gateway_") for name in kinds)


def test_rules_and_dashboard_read_only_series_that_exist() -> None:
    ours = {metric.name + suffix for metric in METRICS for suffix in _SUFFIXES}
    for name, kind in of_the_gateway().items():
        ours |= {name + suffix for suffix in (_SUFFIXES if kind == "histogram" else ("",))}
    known = ours | _TRITONS | set(rules("record")) | {"up"}
    for expression in (*rules("record").values(), *rules("alert").values(), *queries()):
        assert names(expression) <= known, expression


def test_each_recording_rule_is_read_by_something() -> None:
    autoscalers = {"slipway:pod_queue_compute_ratio", "slipway:pod_pending_requests"}
    readers = (*rules("record").values(), *rules("alert").values(), *queries())
    read = {name for expression in readers for name in names(expression)}
    assert set(rules("record")) <= read | autoscalers


def test_documents_name_every_metric_rule_and_alert() -> None:
    text = (FOLDER.parent / "docs/operate/observability.md").read_text()
    for name in (*(metric.name for metric in METRICS), *rules("record"), *rules("alert")):
        assert f"`{name}`" in text
    gateway = (FOLDER.parent / "docs/operate/gateway.md").read_text()
    for name in of_the_gateway():
        assert f"`{name}`" in gateway
    alerts = (FOLDER.parent / "docs/operate/alerts.md").read_text()
    for name in rules("alert"):
        assert f"`{name}`" in alerts


def test_alerts_say_what_is_wrong_and_what_to_do() -> None:
    for group in RULES["groups"]:
        for rule in group["rules"]:
            if "alert" in rule:
                assert set(rule["annotations"]) == {"summary", "description"}
                assert rule["labels"]["severity"] in ("critical", "warning")


def test_dashboard_takes_its_data_source_and_models_from_variables() -> None:
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert variables == {"datasource", "model"}
    for panel in DASHBOARD["panels"]:
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["title"]
        assert panel["description"]
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len(places)


def test_collector_uses_what_it_defines() -> None:
    collector: dict[str, Any] = yaml.safe_load((FOLDER / "collector.yaml").read_text())
    for pipeline in collector["service"]["pipelines"].values():
        for kind, used in pipeline.items():
            assert set(used) <= set(collector[kind])
    assert collector["receivers"]["otlp"]["protocols"]["http"]["endpoint"] == "0.0.0.0:4318"


def test_grafana_is_given_the_data_source_and_the_folder_of_the_dashboard() -> None:
    sources = yaml.safe_load((FOLDER / "grafana" / "datasources.yaml").read_text())["datasources"]
    assert [source["type"] for source in sources] == ["prometheus"]
    providers = yaml.safe_load((FOLDER / "grafana" / "dashboards.yaml").read_text())["providers"]
    assert providers[0]["options"]["path"] == "/var/lib/grafana/dashboards"

"""The arguments that the chart gives to a server are ones that this server takes."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from helm_chart import (
    CHART,
    EXAMPLES,
    Manifest,
    example,
    of_kind,
    only,
    pod_specs,
    render,
    server,
)

from slipway_cli.root import app
from slipway_serving.runtime.limits import read_limits
from slipway_serving.triton.arguments import (
    extra_argument_problems,
    token_restrictions,
    tracing_problems,
)
from slipway_serving.triton.command_line import server_arguments
from slipway_serving.triton.config import ServerConfig
from slipway_serving.triton.install.layout import environment
from slipway_serving.triton.install.locate import find_triton

CLOSED = CHART / "examples" / "closed.yaml"


def servers() -> list[list[str]]:
    """The arguments of every server of every example."""
    found = [
        container["args"]
        for values in (None, *EXAMPLES)
        for manifest in render(values)
        for pod in pod_specs(manifest)
        for container in pod["containers"]
        if container["name"] == "triton"
    ]
    assert found
    return found


def parsed(*arguments: str) -> dict[str, Any]:
    """Parse a command line of `slipway` down to its last command, without running it."""
    command: Any = typer.main.get_command(app)
    rest = list(arguments)
    while hasattr(command, "commands"):
        command = command.get_command(None, rest.pop(0))
    return dict(command.make_context(command.name, rest).params)


def test_arguments_of_servers_are_flags_of_slipway_serve() -> None:
    for arguments in servers():
        # As the image's entry point begins; the later --repository wins.
        entry = ["--host", "0.0.0.0", "--repository", "/models"]
        given = parsed("serve", *entry, *arguments)
        assert str(given["repository"]) == arguments[1]
        assert given["exit_timeout_s"] >= 1
        assert not extra_argument_problems(given["arguments"] or ())
        assert not tracing_problems(given["trace_otlp"], given["trace_every"])


def test_arguments_of_triton_itself_come_after_the_dashes() -> None:
    arguments = server(CLOSED)["args"]
    own = tuple(arguments[arguments.index("--") + 1 :])
    given = parsed("serve", *arguments)
    assert "--grpc-use-ssl-mutual=true" in own
    assert tuple(given["arguments"]) == own
    assert given["trace_otlp"] == "http://collector.monitoring:4318/v1/traces"
    assert given["model_control"] == "explicit"


def test_server_on_gpus_has_the_arguments_of_one_on_cpus() -> None:
    values: Manifest = {"tracing": {"url": "http://c:4318/v1/traces", "every": 5}}
    gpu: Manifest = {"image": {"repository": "slipway/server-gpu"}, "gpu": {"count": 1}}
    assert server({**values, **gpu})["args"] == server(values)["args"]
    given = parsed("serve", *server(values)["args"])
    assert (given["trace_otlp"], given["trace_every"]) == ("http://c:4318/v1/traces", 5)
    assert str(given["control_token_file"]) == "/secrets/control/token"


def test_answers_are_kept_as_the_pool_says_and_not_where_models_are_loaded_anew() -> None:
    for given, mib in (({}, 64), ({"responseCacheMiB": 8}, 8), ({"responseCacheMiB": 0}, 0)):
        assert f"--response-cache-mib {mib}" in " ".join(server(given)["args"])
    explicit = server({"control": {"mode": "explicit"}})["args"]
    assert "cache" not in " ".join(explicit)


def test_server_and_its_drain_stop_videos_only_when_the_pool_checkpoints() -> None:
    for given, on_stop in (({}, "finish"), ({"onStop": "checkpoint"}, "checkpoint")):
        container = server(given)
        assert parsed("serve", *container["args"])["on_stop"] == on_stop
        script = container["lifecycle"]["preStop"]["exec"]["command"][2]
        drain = parsed(*script.partition("; slipway ")[2].split())
        assert (drain["refuse"], drain["checkpoint"]) == (on_stop == "finish", on_stop == "checkpoint")
    pools = {"video": {"onStop": "checkpoint"}, "words": {}}
    found = {m["metadata"]["name"]: m for m in of_kind(render({"pools": pools}), "Deployment")}
    for name, on_stop in (("shop-slipway-video", "checkpoint"), ("shop-slipway-words", "finish")):
        (pod,) = pod_specs(found[name])
        assert parsed("serve", *pod["containers"][0]["args"])["on_stop"] == on_stop


def test_limits_of_requests_reach_the_server_as_they_were_given(tmp_path: Path) -> None:
    limits = {"wan_t2v": {"steps": 20, "frames * height * width": 8_000_000}, "airimu": {"acc": 30_000}}
    values: Manifest = {"limits": limits}
    manifests, container = render(values), server(values)
    data = only(manifests, "ConfigMap", "shop-slipway-limits")["data"]
    (file,) = data
    (tmp_path / file).write_text(data[file])
    assert read_limits(tmp_path / file) == limits
    pod = only(manifests, "Deployment")["spec"]["template"]
    (volume,) = (each for each in pod["spec"]["volumes"] if each["name"] == "limits")
    (mount,) = (each for each in container["volumeMounts"] if each["name"] == "limits")
    assert volume["configMap"]["name"] == "shop-slipway-limits"
    path = f"{mount['mountPath']}/{file}"
    assert str(parsed("serve", *container["args"])["limits"]) == path
    # Models read them when they are loaded, so that others are for other pods.
    other = only(render({**values, "limits": {"wan_t2v": {"steps": 21}}}), "Deployment")["spec"]["template"]
    assert other["metadata"]["annotations"] != pod["metadata"]["annotations"]
    assert "annotations" not in only(render({}), "Deployment")["spec"]["template"]["metadata"]


def test_video_pool_asks_the_text_pool_by_the_name_of_its_service() -> None:
    text = example("text-pool").read_text(encoding="utf-8")
    (place,) = set(re.findall(r"grpc://(\S+?):8001", text))
    services = of_kind(render(example("text-pool")), "Service")
    assert place in {service["metadata"]["name"] for service in services}


def parse_errors(arguments: list[str], tmp_path: Path) -> str:
    """What the real tritonserver says about arguments; no repository of theirs exists, so it ends at once."""
    triton = find_triton()
    done = subprocess.run(
        [str(triton.binary), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
        env=environment(triton, tmp_path, {"PATH": "/usr/bin:/bin"}),
    )
    return done.stdout + done.stderr


def test_what_slipway_serve_makes_of_them_are_options_of_tritonserver(tmp_path: Path) -> None:
    triton = find_triton()
    everything: Manifest = {
        "tls": {"secret": "t", "mutual": True},
        "tracing": {"url": "http://127.0.0.1:9/v1/traces"},
        "address": "::",
    }
    for arguments in (max(servers(), key=len), server(everything)["args"]):
        given = parsed("serve", *arguments)
        config = ServerConfig(
            tmp_path / "none",
            host=given["host"],
            exit_timeout_s=given["exit_timeout_s"],
            trace_otlp=given["trace_otlp"],
            trace_every=given["trace_every"],
            arguments=tuple(given["arguments"] or ()),
        )
        made = server_arguments(config, "id", tmp_path, triton, use_response_cache=True)
        said = parse_errors([*made, *token_restrictions("0123456789abcdef")], tmp_path)
        assert "unrecognized option" not in said
        assert "Usage:" not in said, said[:600]
        assert "failed to stat" in said or "No such file" in said, said[-600:]


@pytest.mark.parametrize("argument", ["--grpc-max-connection-ages=1", "--trace-config=rate=often"])
def test_tritonserver_would_say_so_if_an_argument_were_wrong(argument: str, tmp_path: Path) -> None:
    said = parse_errors([f"--model-repository={tmp_path}/none", argument], tmp_path)
    assert "unrecognized option" in said or "Invalid" in said, said[:400]


def test_tests_client_arguments_are_a_command_of_slipway() -> None:
    for values in (None, *EXAMPLES):
        for manifest in of_kind(render(values), "Pod"):
            (container,) = manifest["spec"]["containers"]
            if container["name"] == "client":
                assert parsed(*container["args"])["url"].endswith(":8001")


def test_load_tests_arguments_are_commands_of_slipway_load() -> None:
    manifests = render({"load": {"enabled": True}})
    job, service = only(manifests, "Job"), only(manifests, "Service", "shop-slipway-load")
    leading, following = (
        parsed("load", *m["spec"]["template"]["spec"]["containers"][0]["args"])
        for m in (job, only(manifests, "Deployment", "shop-slipway-load"))
    )
    assert (leading["url"], leading["workers"]) == ("grpc://shop-slipway:8001", 2)
    assert leading["wait_s"] > 300 and leading["tls"] is None
    secure = render({"load": {"enabled": True}, "tls": {"secret": "certificates"}})
    said = parsed("load", *only(secure, "Job")["spec"]["template"]["spec"]["containers"][0]["args"])
    assert (said["url"], str(said["tls"])) == ("grpcs://shop-slipway:8001", "/secrets/tls")
    assert following["worker_of"] == service["metadata"]["name"] == "shop-slipway-load"


def test_preparing_exports_are_commands_of_slipway() -> None:
    lines = {
        line.partition("slipway ")[2].replace('"$models"', "/store/models")
        for values in (None, *EXAMPLES)
        for manifest in render(values)
        for pod in pod_specs(manifest)
        for container in [*pod["containers"], *pod.get("initContainers", [])]
        if container["name"] == "prepare"
        for line in container["args"][0].splitlines()
        if "slipway export" in line
    }
    assert len(lines) >= 2
    for line in lines:
        assert str(parsed(*line.split())["repository"]).startswith("/store/")


def serving_pods() -> Iterator[Manifest]:
    """Yield the pods of Triton of every example."""
    for values in (None, *EXAMPLES):
        for manifest in render(values):
            yield from (pod for pod in pod_specs(manifest) if pod["containers"][0]["name"] == "triton")


def test_probes_ask_the_endpoint_of_slipway_serve_or_run_a_command_where_there_is_none() -> None:
    for pod in serving_pods():
        container = pod["containers"][0]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        for probe, path in (("readinessProbe", "/ready"), ("livenessProbe", "/live")):
            if "--host" in container["args"]:
                assert container[probe]["httpGet"] == {"path": path, "port": "probes"}
                assert parsed("serve", *container["args"])["probe_port"] == ports["probes"]
            else:
                program, *command = container[probe]["exec"]["command"]
                assert program == "slipway"
                assert parsed(*command)["processes"] is True


def test_pre_stop_runs_a_command_of_slipway() -> None:
    for pod in serving_pods():
        script = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][2]
        command = script.partition("; slipway ")[2].split()
        assert command[0] == "drain"
        assert parsed(*command)["timeout_s"] > 0

"""Arguments of Triton that follow from what the server was asked for, and those that a user may add."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from slipway_cli.root import run
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.triton.arguments import token_restrictions
from slipway_serving.triton.command_line import server_arguments
from slipway_serving.triton.config import ServerConfig
from slipway_serving.triton.install.locate import find_triton
from slipway_serving.triton.start.checks import models_unsafe_to_cache, models_without_ranges
from slipway_serving.triton.termination import EXIT_GRACE_S

TOKEN = "0123456789abcdef"


def arguments(**fields: object) -> list[str]:
    config = ServerConfig(Path("models"), **fields)  # type: ignore[arg-type]
    return list(server_arguments(config, "id", Path("folder"), find_triton(), use_response_cache=True))


def test_token_closes_the_apis_that_change_the_server_over_both_protocols() -> None:
    closed = "model-repository,shared-memory,trace,logging:slipway-control=" + TOKEN
    assert [*token_restrictions(TOKEN)] == [
        f"--http-restricted-api={closed}",
        f"--grpc-restricted-protocol={closed}",
    ]


@pytest.mark.parametrize("mode", ["none", "explicit"])
def test_token_is_not_among_the_arguments_that_anybody_may_see(mode: str) -> None:
    assert TOKEN not in " ".join(arguments(control_token=TOKEN, model_control=mode))


def test_compose_starts_both_servers_alike() -> None:
    compose = yaml.safe_load((Path(__file__).parents[3] / "compose.yaml").read_text(encoding="utf-8"))
    cpu, gpu = (compose["services"][name] for name in ("triton", "triton-gpu"))
    assert gpu["command"] == cpu["command"]
    assert not {"entrypoint", "environment"} & gpu.keys()


def test_compose_waits_longer_than_its_servers_whatever_they_do_with_videos_when_stopped() -> None:
    compose = yaml.safe_load((Path(__file__).parents[3] / "compose.yaml").read_text(encoding="utf-8"))
    for name in ("triton", "triton-gpu"):
        service = compose["services"][name]
        assert " --on-stop ${ON_STOP:-finish} " in service["command"]
        exit_timeout_s = int(service["command"].partition("--exit-timeout-s ")[2].split()[0])
        assert int(service["stop_grace_period"].removesuffix("s")) > exit_timeout_s + EXIT_GRACE_S


def test_requests_are_traced_only_where_an_endpoint_is_given() -> None:
    found = arguments(trace_otlp="http://collector:4318/v1/traces", trace_every=10)
    assert "--trace-config=opentelemetry,url=http://collector:4318/v1/traces" in found
    assert "--trace-config=rate=10" in found
    assert not [argument for argument in arguments(trace_every=10) if "trace" in argument]


@pytest.mark.parametrize("url", ["collector:4318", "ftp://collector/v1/traces", "http://collector:4318", ""])
def test_endpoint_that_is_no_otlp_over_http_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="trace_otlp must be an OTLP endpoint over HTTP, got"):
        ServerConfig(Path("models"), trace_otlp=url)


def test_sampling_below_one_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="trace_every must be 1 or more, got 0"):
        ServerConfig(Path("models"), trace_every=0)


def test_further_arguments_come_last() -> None:
    further = ("--rate-limit=execution_count", "--rate-limit-resource=R:4")
    assert tuple(arguments(arguments=further)[-3:-1]) == further


def test_headers_that_a_user_names_join_the_one_that_marks_grpc() -> None:
    patterns = ("--http-header-forward-pattern=x-team", "--grpc-header-forward-pattern=x-team|x-user")
    found = [each for each in arguments(arguments=patterns) if "forward-pattern" in each]
    assert found == [patterns[0], "--grpc-header-forward-pattern=(user-agent)|(x-team|x-user)"]


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ("rate-limit=off", "must be of the form --name=value, got 'rate-limit=off'"),
        ("--rate-limit", "must be of the form --name=value, got '--rate-limit'"),
        ("--=off", "must be of the form --name=value"),
        ("--http-port=80", "must not repeat what slipway sets, got --http-port; try --http-port"),
        (
            "--model-repository=/x",
            "must not repeat what slipway sets, got --model-repository; try --repository",
        ),
        ("--http-restricted-api=x:y=z", "try --control-token-file"),
        ("--grpc-server-cert=tls.crt", "try --grpc-server-cert=$PWD/tls.crt"),
        (
            "--http-header-forward-pattern=.*",
            "must not match user-agent, which marks requests that came over",
        ),
        ("--grpc-header-forward-pattern=(x", "must be a regular expression, got '(x'"),
        (
            "--backend-config=python,shm-region-prefix-name=x",
            "must not set python,shm-region-prefix-name",
        ),
    ],
)
def test_further_argument_that_breaks_a_rule_is_refused(argument: str, text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ServerConfig(Path("models"), arguments=(argument,))
    assert text in str(caught.value)


def test_command_takes_further_arguments_after_two_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--repository", "absent", "--", "--rate-limit=off", "--grpc-port=1"]) == 2
    assert "got --grpc-port; try --grpc-port" in capsys.readouterr().err
    assert run(["serve", "--repository", "absent", "--", "--rate-limit=off"]) == 2
    assert "repository must exist, got absent" in capsys.readouterr().err


def test_answers_are_kept_by_default_only_where_no_model_is_loaded_anew() -> None:
    assert {f"--cache-directory={find_triton().caches}", f"--cache-config=local,size={64 << 20}"} <= {
        *arguments()
    }
    assert f"--cache-config=local,size={1 << 20}" in arguments(response_cache_mib=1)
    for fields in ({"response_cache_mib": 0}, {"model_control": "explicit"}):
        assert not [argument for argument in arguments(**fields) if "cache" in argument]


def test_model_of_several_outputs_is_found_when_its_answers_are_cached(tmp_path: Path) -> None:
    outputs = [
        'output { name: "a" data_type: TYPE_FP32 dims: 1 }',
        'output { name: "b" data_type: TYPE_FP32 dims: 1 }',
    ]
    cache = "response_cache { enable: true }"
    texts = {
        "cached_pair": [cache, *outputs],
        "cached": [cache, outputs[0]],
        "pair": outputs,
        "off": ["response_cache { enable: false }", *outputs],
        "unreadable": ["no_such_field: 1"],
    }
    for name, lines in texts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.pbtxt").write_text("\n".join(lines))
    (tmp_path / "empty").mkdir()
    assert models_unsafe_to_cache(sorted(tmp_path.iterdir())) == ["cached_pair"]


def test_exported_model_is_found_when_its_configuration_has_no_ranges(tmp_path: Path) -> None:
    axes = 'parameters { key: "axes" value { string_value: "batch=1:2" } }'
    manifests = {"old": '{"axes": {"batch": [1, 1, 2]}}', "authored": "{}", "broken": "{", "listed": "[]"}
    for name in (*manifests, "new", "own"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.pbtxt").write_text(axes if name == "new" else "")
    for name, text in (manifests | {"new": manifests["old"]}).items():
        (tmp_path / name / "manifest.json").write_text(text)
    assert models_without_ranges(sorted(tmp_path.iterdir())) == ["old"]


@pytest.mark.parametrize("fields", [{"response_cache_mib": -1}, {"model_control": "explicit"}])
def test_cache_of_answers_is_refused_when_models_may_be_loaded_anew(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match="response_cache_mib must be 0 or more, and 0 with explicit"):
        ServerConfig(Path("models"), **{"response_cache_mib": 8, **fields})  # type: ignore[arg-type]

"""A server container serves the repository of this machine, file for file and byte for byte."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import av
from docker_engine import CONFINED, Ended, Engine, Served, output_of

from slipway_client import Client, TextToVideoRequest, Video
from slipway_serving.triton.server import Server

REQUEST = TextToVideoRequest(prompt="A serene lake at sunset", frames=5, height=32, width=32, steps=3, seed=7)
FLAGS = ("--frames", "5", "--size", "32x32", "--steps", "3", "--seed", "7")


def video_of(url: str) -> bytes:
    with Client(url) as client:
        (video,) = [event for event in client.generate(REQUEST) if isinstance(event, Video)]
    return video.data


def test_container_is_confined_and_healthy_when_it_serves(
    served: Served, shown: Callable[[str], None]
) -> None:
    served.container.reload()
    state = served.container.attrs
    host = state["HostConfig"]
    assert (state["State"]["Health"]["Status"], state["Config"]["User"]) == ("healthy", "1000:1000")
    assert (host["ReadonlyRootfs"], host["Privileged"], host["CapDrop"]) == (True, False, ["ALL"])
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert [(mount["Destination"], mount["RW"]) for mount in state["Mounts"]] == [("/models", False)]
    status = output_of(served.container, "cat", "/proc/1/status")
    facts = dict(line.split(":\t", 1) for line in status.splitlines())
    assert facts["Uid"].split() == ["1000"] * 4
    assert {facts[name] for name in ("CapPrm", "CapEff", "CapBnd")} == {"0" * 16}
    assert facts["NoNewPrivs"] == "1"
    shown("served: healthy as 1000:1000, root and /models read-only, no capability, no new privileges")


def test_container_sees_the_exported_files_byte_for_byte_when_mounted(
    served: Served, repository: Path, shown: Callable[[str], None]
) -> None:
    sums = "find . -type f -exec sha256sum {} +"
    there = output_of(served.container, "sh", "-c", sums, workdir="/models")
    seen = {name: digest for digest, name in (line.split("  ./") for line in there.splitlines())}
    here = {
        str(path.relative_to(repository)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in repository.rglob("*")
        if path.is_file()
    }
    assert seen == here
    shown(f"served: {len(here)} files of the repository, the same bytes as on this machine")


def test_container_generates_what_the_embedded_server_does_when_asked_alike(
    served: Served, server: Server, shown: Callable[[str], None]
) -> None:
    assert video_of(served.grpc_url) == video_of(server.grpc_url)
    shown("served: the same video, byte for byte, as of `slipway serve` on this machine")


def test_client_container_writes_a_video_when_run_beside_the_server(
    engine: Engine, images: dict[str, str], served: Served, tmp_path: Path, shown: Callable[[str], None]
) -> None:
    tmp_path.chmod(0o777)
    arguments = ("generate", "wan_t2v", REQUEST.prompt, "--url", "triton:8001", *FLAGS)
    arguments = (*arguments, "--output", "/out/lake.mp4")
    options = {**CONFINED, "network": served.network, "volumes": [f"{tmp_path}:/out"]}
    done = engine.run(images["client"], *arguments, **options)
    with av.open(str(tmp_path / "lake.mp4")) as video:
        frames = [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]
    assert [frame.shape for frame in frames] == [(32, 32, 3)] * 5
    assert (tmp_path / "lake.mp4").stat().st_uid == 1000
    shown(f"client container: {done.stdout.strip()}")


def test_health_check_command_tells_by_its_exit_code_when_a_model_is_unknown(
    engine: Engine, images: dict[str, str], served: Served
) -> None:
    def ask(*arguments: str, code: int = 0) -> Ended:
        options = {**CONFINED, "network": served.network}
        return engine.run(images["client"], "ready", "--url", *arguments, code=code, **options)

    assert ask("triton:8000", "--model", "wan_t2v").stdout == "ready\n"
    assert "unknown model: 'nope'" in ask("triton:8000", "--model", "nope", code=1).stderr
    assert "connection refused" in ask("triton:8009", code=1).stderr

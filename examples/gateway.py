"""The gateway in front of the examples' models: a video by plain HTTP, and the studio, a page for a browser.

`make demo` runs this last. In a terminal, one server has the models of all examples, and server and gateway
stay until Ctrl-C.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx

from slipway_serving.triton.server import Server, ServerConfig

OUT = Path("out/gateway")
REPOSITORY = Path("out/repository")
ALL = OUT / "repository"
PROMPT = "a red ball grows on sand"
_START_S = 60.0


def main() -> None:
    """Start a server and a gateway, make a video by HTTP, and stay in a terminal."""
    # Otherwise SIGTERM would end this process alone, and leave the gateway.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    stays = sys.stdout.isatty() and not os.environ.get("CI")
    repository = _all_models() if stays else REPOSITORY
    with ExitStack() as stack:
        server = stack.enter_context(
            Server(ServerConfig(repository, http_port=0, grpc_port=0, metrics_port=0))
        )
        url = _start_gateway(stack, server, 8080 if stays else 0)
        _make_video(url)
        if not stays:
            print("In a terminal, `make demo` keeps the gateway and its web page until Ctrl-C.")
            return
        print(f"{url}/docs describes the API. In another shell, you can type:")
        print(f'  curl {url}/v1/videos -F prompt="{PROMPT}"')
        print()
        print(f"Open {url} in a browser: the studio shows all of this. Ctrl-C ends it.", flush=True)
        with suppress(KeyboardInterrupt):
            signal.pause()


def _all_models() -> Path:
    """Return a repository with the models of all examples; its files are links to theirs."""
    for repository in sorted([REPOSITORY, *Path("out").glob("*/repository")]):
        for model in repository.iterdir() if repository != ALL else ():
            if model.is_dir() and not (ALL / model.name).exists():
                shutil.copytree(model, ALL / model.name, copy_function=os.link)
    return ALL


def _start_gateway(stack: ExitStack, server: Server, port: int) -> str:
    """Start the gateway, and return its address; the stack ends it."""
    command = [sys.executable, "-m", "slipway_cli", "gateway", "--triton", server.grpc_url]
    metrics = ["--triton-metrics-port", str(server.config.metrics_port)]
    options = ["--data", str(OUT / "data"), "--port", str(port), *metrics]
    log = OUT / "gateway.log"
    with log.open("wb") as output:
        process = subprocess.Popen([*command, *options], stdout=output, stderr=output)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    deadline = time.monotonic() + _START_S
    while "ready on " not in log.read_text():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the gateway did not start:\n{log.read_text()}")
        time.sleep(0.1)
    return log.read_text().partition("ready on ")[2].split()[0]


def _make_video(url: str) -> None:
    """Create a job, follow it, and download its video."""
    with httpx.Client(base_url=url, trust_env=False, timeout=60) as http:
        job = http.post(
            "/v1/videos", data={"prompt": PROMPT, "num_inference_steps": "20", "seed": "5"}
        ).json()
        while job["status"] in ("queued", "in_progress"):
            time.sleep(0.2)
            job = http.get(f"/v1/videos/{job['id']}").json()
        if job["status"] != "completed":
            raise SystemExit(f"the job ended as {job['status']}: {job['error']}")
        file = OUT / "ball.mp4"
        file.write_bytes(http.get(f"/v1/videos/{job['id']}/content").content)
        print(f"{file}: {job['size']}, {job['seconds']} s, made by {url} in {job['inference_time_s']} s")


if __name__ == "__main__":
    main()

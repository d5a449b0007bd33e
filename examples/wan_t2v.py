"""From a checkpoint to a video file in one process: export, serve, generate, stop.

`make demo` runs this with the demo checkpoint, which was trained on coloured shapes in motion. The real one
takes the same three calls: `checkpoint="Wan-AI/Wan2.2-T2V-A14B-Diffusers"` and its sizes.
"""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from slipway_client import Client, Progress, TextToVideoRequest, Video
from slipway_export.commands.terminal import print_parity, quiet_libraries
from slipway_export.families import family_named
from slipway_export.options import ExportOptions
from slipway_export.run import run_export
from slipway_serving.triton.server import Server, ServerConfig

OUT = Path("out")
REQUEST = TextToVideoRequest(
    prompt="a yellow star bounces to the right on grass",
    frames=33,
    height=64,
    width=64,
    steps=20,
    guidance_scale=4.0,
    fps=16,
    seed=7,
)


def main() -> None:
    """Run the three steps and say what each took."""
    console = Console()
    with quiet_libraries():
        result = run_export(
            family_named("wan_t2v"),
            ExportOptions(checkpoint="demo", repository=OUT / "repository"),
            report=lambda line: console.print(f"export: {line}", highlight=False),
        )
    print_parity(result.rows)
    console.print(f"exported and verified {len(result.models)} models in {result.elapsed_s:.0f} s")

    started = time.monotonic()
    with Server(ServerConfig(OUT / "repository", http_port=0, grpc_port=0, metrics_port=0)) as server:
        console.print(f"Triton is ready on {server.grpc_url} after {time.monotonic() - started:.0f} s")
        with Client(server.grpc_url) as client:
            for event in client.generate(REQUEST):
                if isinstance(event, Progress):
                    console.print(f"step {event.step} of {event.steps}, {event.elapsed_s:.2f} s")
                elif isinstance(event, Video):
                    (OUT / "wan_t2v.mp4").write_bytes(event.data)
    console.print(f"Triton has stopped; wrote {OUT / 'wan_t2v.mp4'}: {REQUEST.frames} frames, ", end="")
    console.print(f"{REQUEST.width}x{REQUEST.height}, {REQUEST.fps} frames per second")


if __name__ == "__main__":
    main()

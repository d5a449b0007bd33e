"""A picture that goes on as a prompt says: export, serve, generate, stop.

`make demo` runs this with the demo checkpoint, which was trained on coloured shapes in motion. The real one
takes the same calls with the parts of HunyuanVideo and FramePackI2V_HY, as `docs/learn/framepack_i2v.md`
has them.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from shell import slipway

from slipway_export.commands.terminal import quiet_libraries
from slipway_export.families import family_named
from slipway_export.options import ExportOptions
from slipway_export.run import run_export
from slipway_serving.triton.server import Server, ServerConfig

OUT = Path("out/framepack_i2v")


def main() -> None:
    """Run the steps; the commands say what they did."""
    shutil.rmtree(OUT, ignore_errors=True)
    repository = OUT / "repository"
    with quiet_libraries():
        run_export(family_named("framepack_i2v"), ExportOptions(checkpoint="demo", repository=repository))
    slipway("checkpoint", "framepack_i2v", "--preset", "demo", "--output", str(OUT / "pictures"))
    file, prompt = (OUT / "pictures/picture.txt").read_text(encoding="utf-8").splitlines()[0].split("\t")
    with Server(ServerConfig(repository, http_port=0, grpc_port=0, metrics_port=0)) as server:
        asked = (prompt, "--image", str(OUT / "pictures" / file), "--size", "64x64", "--seconds", "3.6")
        files = ("--output", str(OUT / "video.mp4"), "--url", server.grpc_url)
        slipway("generate", "framepack_i2v", *asked, *files)


if __name__ == "__main__":
    main()

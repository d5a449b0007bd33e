"""A world, played by keys: export, serve, play, stop.

`make demo` runs this with the demo checkpoint, which was trained on worlds seen from above. The real one
takes the same calls: `checkpoint="Skywork/Matrix-Game-2.0"`, and a photograph.
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

OUT = Path("out/matrix_game")
MODE = "universal"
# What a world needs that is played block by block; the mode's graph of whole videos is left out.
COMPONENTS = (MODE, "image_encoder", "vae_encoder", "vae_decoder")


def main() -> None:
    """Run the steps; the commands say what they did."""
    shutil.rmtree(OUT, ignore_errors=True)
    repository = OUT / "repository"
    options = ExportOptions(checkpoint="demo", repository=repository, variant=MODE, components=COMPONENTS)
    with quiet_libraries():
        run_export(family_named("matrix_game"), options)
    slipway("checkpoint", "matrix_game", "--preset", "demo", "--output", str(OUT / "pictures"))
    with Server(ServerConfig(repository, http_port=0, grpc_port=0, metrics_port=0)) as server:
        played = ("--image", str(OUT / f"pictures/{MODE}.png"), "--actions", "d*3 s*3 a*3 w*3")
        files = ("--output", str(OUT / "world.mp4"), "--url", server.grpc_url)
        slipway("play", "matrix_game", *played, *files)


if __name__ == "__main__":
    main()

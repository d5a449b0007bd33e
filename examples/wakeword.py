"""A recording, listened to by a served wake word: export, serve, listen, draw, stop.

`make demo` runs this with the demo checkpoints: a backbone that was trained on synthetic speech, the word
"slipway", and a recording in which a voice that neither has heard says it twice. A word of your own takes the
same calls after `slipway train`.
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

OUT = Path("out/wakeword")
WORD = "slipway"


def main() -> None:
    """Run the steps; the commands say what they did."""
    shutil.rmtree(OUT, ignore_errors=True)
    repository = OUT / "repository"
    with quiet_libraries():
        for family, checkpoint in (("wakeword", "demo"), ("wakeword_head", WORD)):
            run_export(family_named(family), ExportOptions(checkpoint=checkpoint, repository=repository))
    slipway("checkpoint", "wakeword_head", "--preset", WORD, "--output", str(OUT / "word"))
    with Server(ServerConfig(repository, http_port=0, grpc_port=0, metrics_port=0)) as server:
        heard = ("--stream", "--word", WORD, "--plot", str(OUT / "heard.png"))
        slipway("listen", str(OUT / "word/said.ogg"), *heard, "--url", server.grpc_url)


if __name__ == "__main__":
    main()

"""A made recording of an inertial sensor, corrected by a served AirIMU: export, serve, correct, draw, stop.

`make demo` runs this with the demo checkpoint, which was trained on simulated sensors; it learns this one's
bias while it rests, so the recording is corrected as a whole. A real checkpoint takes the same calls: the
folder of its `.conf` and `.ckpt`.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from shell import slipway

from slipway_export.families import family_named
from slipway_export.options import ExportOptions
from slipway_export.run import run_export
from slipway_serving.triton.server import Server, ServerConfig

OUT = Path("out/airimu")


def main() -> None:
    """Run the steps; the commands say what they did."""
    shutil.rmtree(OUT, ignore_errors=True)
    repository = OUT / "repository"
    run_export(family_named("airimu"), ExportOptions(checkpoint="demo", repository=repository))
    recording = OUT / "recording"
    slipway("imu-recording", str(recording), "--seconds", "30")
    with Server(ServerConfig(repository, http_port=0, grpc_port=0, metrics_port=0)) as server:
        files = ("--output", str(OUT / "corrected.csv"), "--plot", str(OUT / "trajectory.png"))
        slipway("imu", str(recording), *files, "--window-size", "6000", "--url", server.grpc_url)


if __name__ == "__main__":
    main()

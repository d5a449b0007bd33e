"""The command `slipway play`, which steers a world on a running server by a script or a terminal's keys."""

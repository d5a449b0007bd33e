"""`slipway play`: a world on a running server, steered by a script or by the keys of a terminal."""

"""The `slipway` command: what puts the commands of all parts under one root."""

"""Defaults of the options for a gateway, which the command line reads without the rest of the load test."""

from __future__ import annotations

KEY_VARIABLE = "SLIPWAY_GATEWAY_KEY"
"""Environment variable of the users' key. A plan does not contain the key, since command lines are public."""
DEFAULT_GATEWAY = "http://localhost:8080"
"""Address of a gateway on this machine."""

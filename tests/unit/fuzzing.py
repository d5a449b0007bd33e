"""Number of examples that tests with generated input try; `make fuzz` sets it."""

from __future__ import annotations

import os

EXAMPLES = int(os.environ.get("SLIPWAY_FUZZ_EXAMPLES", "40"))

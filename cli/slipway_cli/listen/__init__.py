"""The command `slipway listen`, which detects wake words in a recording."""

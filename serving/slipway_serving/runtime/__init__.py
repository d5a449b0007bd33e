"""Runtime inside Triton's processes: the adapter, programs, sessions, limits, metrics and engines."""

"""How a run gives back the memory that it took.

ONNX Runtime keeps the memory of each run in an arena for the next one, so what one large request took would
stay with the process. A transformer of 4 layers of width 128 kept 379 MB after a request of 4,096 tokens,
and 103 MB where the arena shrinks after each run. A run of 16 tokens took 0.44 ms of processor time with and
without that, one of 64 tokens 1.7 and 1.8 ms, one of 512 tokens 21.5 and 20.9 ms. Without any arena the
memory was the same as with a shrinking one, and a run of 512 tokens took 23.1 ms (one core of an AMD EPYC
machine without AVX-512, ONNX Runtime 1.31.1).
"""

from __future__ import annotations

ARENA_SHRINKAGE = "memory.enable_memory_arena_shrinkage"
"""Parameter of a model's config: devices whose arenas shrink at the end of each run."""
SHRUNK_ARENAS = "cpu:0"
"""Value of the parameter where a config has none."""

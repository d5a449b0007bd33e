"""Memory arenas of ONNX Runtime that shrink after each run.

ONNX Runtime keeps the memory of each run in an arena for the next run, so the process would keep the memory
of its largest request. A transformer of 4 layers of width 128 kept 379 MB after a request of 4,096 tokens,
and 103 MB with an arena that shrinks after each run. With and without shrinking, a run of 16 tokens took
0.44 ms of processor time, one of 64 tokens 1.7 and 1.8 ms, and one of 512 tokens 21.5 and 20.9 ms. Without
any arena the memory was the same as with a shrinking one, and a run of 512 tokens took 23.1 ms (one core of
an AMD EPYC machine without AVX-512, ONNX Runtime 1.31.1).
"""

from __future__ import annotations

ARENA_SHRINKAGE = "memory.enable_memory_arena_shrinkage"
"""Parameter of a model's config that names the devices whose arenas shrink at the end of each run."""
SHRUNK_ARENAS = "cpu:0"
"""Default value of the parameter."""

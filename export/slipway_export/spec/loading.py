"""How much of a checkpoint's weights the loader of a component reads."""

from __future__ import annotations

from enum import Enum


class Loading(Enum):
    """How much of the weights a component's `load` reads.

    A loader may read more than asked, if its weights are small.

    Attributes:
        READ: All weights, into memory.
        ON_DISK: No weights. The network's tensors take no memory and know their location in the checkpoint's
            files, so the network can be traced. Nothing may be computed from the weights.
        META: No weights. The checkpoint's files are checked, and the network is on device "meta".
    """

    READ = "read"
    ON_DISK = "on disk"
    META = "meta"

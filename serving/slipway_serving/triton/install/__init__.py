"""An installed Triton: where its parts are, what its version offers, and a private layout of its backends."""

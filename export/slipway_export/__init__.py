"""From a checkpoint to a verified model in a Triton model repository."""

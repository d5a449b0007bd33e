"""Components served by PyTorch itself, under the names and tensors of their graphs."""

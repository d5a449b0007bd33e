"""One denoiser: PyTorch eager, torch.compile and our graphs compared in speed, quality and memory."""

"""Parts of video output that all model families share: causal decoder, previews, MP4, delivery."""

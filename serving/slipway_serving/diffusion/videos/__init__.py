"""Work on one video as all pipelines do it: denoise, stop, continue and deliver."""

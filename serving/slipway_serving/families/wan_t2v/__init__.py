"""Text-to-video generation with Wan: requests, denoisers, pipeline."""

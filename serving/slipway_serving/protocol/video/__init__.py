"""Fields and requests that video models share."""

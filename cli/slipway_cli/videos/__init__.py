"""Commands for videos that can be stopped after a step and continued later, here or on another server."""

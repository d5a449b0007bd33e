"""Start of a server: checks before it, the wait until it is ready, and errors in words."""

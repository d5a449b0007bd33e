"""Work on jobs: the worker that claims them, and one run of one job on one server."""

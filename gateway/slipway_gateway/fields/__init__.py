"""Fields of the HTTP API, generated from the request classes of all families."""

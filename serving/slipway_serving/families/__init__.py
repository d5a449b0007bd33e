"""Model families: the requests, the events and the served programs of each."""

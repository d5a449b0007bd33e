"""Load tests of a running server with Locust: users of every family, arrivals, shapes, SLOs, a report."""

"""Load on a running server, driven by Locust: users of every family, arrivals, shapes, SLOs and a report."""

"""Benchmark of the gateway: videos beside direct ones, and a crowd of jobs, watchers and sockets."""

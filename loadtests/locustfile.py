"""`locust -f loadtests/locustfile.py TextToVideo --host localhost:8001 --users 4`: see docs/load.md."""

from slipway_loadtests.load.locustfile import *  # noqa: F403

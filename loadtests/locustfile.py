"""`locust -f loadtests/locustfile.py TextToVideo --host localhost:8001 --users 4`.

docs/operate/load_tests.md describes the users and their load.
"""

from slipway_loadtests.load.locustfile import *  # noqa: F403

"""Locustfile of Slipway, for `locust -f`; `slipway load` passes it to Locust by itself."""

import logging as _logging

from gevent import get_hub as _get_hub
from grpc.experimental.gevent import init_gevent as _init_gevent

from slipway_loadtests.load.users import USERS

# Users are greenlets, so gRPC must wait in greenlets too; this has to be set before the first channel exists.
# A channel with a call in progress holds a thread of gevent's pool, whose default size is 10: an eleventh
# user would wait for another user's call.
_init_gevent()
_get_hub().threadpool.maxsize = 4096
# Locust shows the logs of its libraries, and httpx logs a line for each request.
_logging.getLogger("httpx").setLevel(_logging.WARNING)
globals().update(USERS)

"""What Locust runs: `locust -f` this file, or `slipway load`, which does it for you."""

import logging as _logging

from gevent import get_hub as _get_hub
from grpc.experimental.gevent import init_gevent as _init_gevent

from slipway_loadtests.load.users import USERS

# Users are greenlets, and so must be what waits inside gRPC; before the first channel is made. A channel with
# a call under way holds a thread of gevent's pool: of its 10, an eleventh user would wait for another one.
_init_gevent()
_get_hub().threadpool.maxsize = 4096
# Locust shows what its libraries log, and httpx logs a line for each request.
_logging.getLogger("httpx").setLevel(_logging.WARNING)
globals().update(USERS)

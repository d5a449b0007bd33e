"""What Locust runs: `locust -f` this file, or `slipway load`, which does it for you."""

from grpc.experimental.gevent import init_gevent as _init_gevent

from slipway_loadtests.load.users import USERS

# Users are greenlets, and so must be what waits inside gRPC; before the first channel is made.
_init_gevent()
globals().update(USERS)

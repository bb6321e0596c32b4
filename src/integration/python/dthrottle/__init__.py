"""Asks the dthrottled of this host whether a client may be served.

    throttle = dthrottle.Throttle()
    if not throttle.ask("login:bob"):
        refuse()

It behaves as libdthrottle does: a deadline over each call, serving when nobody answers (or refusing, with
fail_open=False), a pause after a failure that doubles with each further one. A Throttle may be used by all threads at
once and by a child after fork; AsyncThrottle is the same for asyncio. Leases lends capacity to programs that would
rather go slower than be refused. dthrottle.limits is a storage for the package limits, and so for Flask-Limiter and
slowapi. dthrottle.library asks by the C library and decides hot tags without asking.

All else is plain Python over sockets, because the C library holds up an event loop, and greenlets, for as long as it
waits for the daemon, and is another package to install.
"""

from ._answers import Answer, Verdict
from .aio import AsyncThrottle
from .leases import GaugeResource, Leases, RateResource
from .throttle import Throttle

__all__ = ["Answer", "AsyncThrottle", "GaugeResource", "Leases", "RateResource", "Throttle", "Verdict"]

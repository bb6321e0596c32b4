"""A worker with limits.aio: aio_app.py STORAGE_URI LIMIT. A line of standard input is a client that makes a request; 200 or
429 and the seconds until the limit is reset are printed."""

import asyncio
import math
import sys
import time

import limits.aio.strategies
import limits.storage

import dthrottle.limits    # noqa: F401  it makes async+dthrottle:// known


async def main():
    item = limits.parse(sys.argv[2])
    storage = limits.storage.storage_from_string("async+" + sys.argv[1])
    limiter = limits.aio.strategies.MovingWindowRateLimiter(storage)
    for line in iter(sys.stdin.readline, ""):
        served = await limiter.hit(item, line.strip())
        reset, _ = await limiter.get_window_stats(item, line.strip())
        print(200 if served else 429, "-" if served else math.ceil(reset - time.time()), flush=True)


asyncio.run(main())

"""A worker with slowapi: slowapi_app.py STORAGE_URI LIMIT. A line of standard input is a client that makes a request; the
status and Retry-After of the response are printed, "-" for none."""

import sys

import fastapi
from fastapi.testclient import TestClient
from slowapi import Limiter, _rate_limit_exceeded_handler
from slowapi.errors import RateLimitExceeded

import dthrottle.limits    # noqa: F401  it makes dthrottle:// known

limiter = Limiter(lambda request: request.headers["client"], storage_uri=sys.argv[1], strategy="moving-window",
                  headers_enabled=True)
app = fastapi.FastAPI()
app.state.limiter = limiter
app.add_exception_handler(RateLimitExceeded, _rate_limit_exceeded_handler)


@app.get("/")
@limiter.limit(sys.argv[2])
async def index(request: fastapi.Request, response: fastapi.Response):
    return "served"


client = TestClient(app)
for line in sys.stdin:
    response = client.get("/", headers={"Client": line.strip()})
    print(response.status_code, response.headers.get("Retry-After", "-"), flush=True)

"""A worker with Flask-Limiter: flask_app.py STORAGE_URI LIMIT. A line of standard input is a client that makes a request;
the status and Retry-After of the response are printed, "-" for none."""

import sys

import flask
from flask_limiter import Limiter

import dthrottle.limits    # noqa: F401  it makes dthrottle:// known

app = flask.Flask("worker")
limiter = Limiter(lambda: flask.request.headers["Client"], app=app, storage_uri=sys.argv[1], strategy="moving-window",
                  default_limits=[sys.argv[2]], headers_enabled=True)


@app.route("/")
def index():
    return "served"


client = app.test_client()
for line in sys.stdin:
    response = client.get("/", headers={"Client": line.strip()})
    print(response.status_code, response.headers.get("Retry-After", "-"), flush=True)

"""A headless Chromium for a `with` block, driven over its DevTools pipe: what a page shows, says and asks for."""

import json
import os
import select
import shutil
import subprocess
import tempfile
import time

from daemon import PATIENCE, clean_environment

# A browser takes its time to start on a busy machine, whatever the daemon was built with.
SECONDS = max(60.0, PATIENCE)

_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--no-default-browser-check", "--mute-audio", "--hide-scrollbars", "--remote-debugging-pipe",
    # Whatever a page asks for elsewhere fails, and is seen to have been asked for.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")


class Browser:
    def __init__(self):
        self._numbers = 0
        self._unread = b""
        self._events = []    # that nobody has looked at, as (session, method, parameters)

    def __enter__(self):
        program = shutil.which("chromium")
        if program is None:
            raise AssertionError("chromium is not installed")
        self._profile = tempfile.mkdtemp(prefix="dthrottle-browser-")
        commands, self._to = os.pipe()
        self._from, answers = os.pipe()
        # It reads from descriptor 3 and writes to 4.
        shell = f'exec "$@" 3<&{commands} 4>&{answers} 2>/dev/null'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "chromium", program, *_FLAGS, f"--user-data-dir={self._profile}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=clean_environment(HOME=self._profile),
            pass_fds=(commands, answers))
        os.close(commands)
        os.close(answers)
        return self

    def __exit__(self, *_):
        try:
            self.call("Browser.close")
            self._process.wait(SECONDS)
        except (AssertionError, OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._to)
        os.close(self._from)
        shutil.rmtree(self._profile, ignore_errors=True)

    def page(self, url, **options):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        return Page(self, session, url, **options)

    # ---- The pipe: JSON, each with a NUL behind it ----

    def call(self, method, session=None, **parameters):
        self._numbers += 1
        number = self._numbers
        message = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data):]
        deadline = time.monotonic() + SECONDS
        while True:
            answer = self._receive(deadline - time.monotonic())
            if answer is None:
                raise AssertionError(f"the browser does not answer {method}")
            if answer.get("id") == number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]
            self._keep(answer)

    def take_events(self, session):
        """What has happened since the last time."""
        while (message := self._receive(0)) is not None:
            self._keep(message)
        taken = [(method, parameters) for at, method, parameters in self._events if at == session]
        self._events = [event for event in self._events if event[0] != session]
        return taken

    def _keep(self, message):
        if "method" in message:
            self._events.append((message.get("sessionId"), message["method"], message["params"]))

    def _receive(self, seconds):
        while b"\0" not in self._unread:
            if not select.select([self._from], [], [], max(0, seconds))[0]:
                return None
            data = os.read(self._from, 1 << 20)
            if not data:
                raise AssertionError("the browser has left")
            self._unread += data
        message, self._unread = self._unread.split(b"\0", 1)
        return json.loads(message)


class Page:
    """One page. `complaints` are its console messages from warnings up, exceptions and dialogs; `requests` all URLs that
    it asked for."""

    def __init__(self, browser, session, url, width=1240, height=900, dark=False):
        self._browser, self._session = browser, session
        self.complaints, self.requests = [], []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.call("Page.navigate", url=url)

    def call(self, method, **parameters):
        return self._browser.call(method, self._session, **parameters)

    def run(self, expression):
        """The value of an expression of JavaScript, awaited."""
        done = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise AssertionError(f"{expression}: {done['exceptionDetails']}")
        return done["result"].get("value")

    def wait(self, expression, what, seconds=SECONDS):
        """Waits until an expression is true, and returns its value."""
        deadline = time.monotonic() + seconds
        while not (value := self.run(expression)):
            self.look()
            if time.monotonic() > deadline:
                raise AssertionError(f"after {seconds:g} s still not: {what}; {self.complaints}")
            time.sleep(0.05)
        return value

    def look(self):
        """Takes note of what has happened, and ends dialogs."""
        for method, event in self._browser.take_events(self._session):
            if method == "Network.requestWillBeSent":
                self.requests.append(event["request"]["url"])
            elif method == "Runtime.consoleAPICalled" and event["type"] in ("error", "warning", "assert"):
                self.complaints.append(f"console.{event['type']}: {event['args']}")
            elif method == "Runtime.exceptionThrown":
                self.complaints.append(f"exception: {event['exceptionDetails']}")
            elif method == "Log.entryAdded" and event["entry"]["level"] in ("error", "warning"):
                self.complaints.append(f"log: {event['entry']}")
            elif method == "Page.javascriptDialogOpening":
                self.complaints.append(f"dialog: {event['message']}")
                self.call("Page.handleJavaScriptDialog", accept=False)

    def picture(self):
        """The whole page as PNG, in base64."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        return self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)["data"]

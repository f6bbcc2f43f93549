#!/usr/bin/env python3
"""Drives headless Chromium over a pipe (the DevTools protocol: JSON texts that end in NUL on file descriptors 3 and 4).

with Browser() as b:
    b.open(path, width=1400, height=900, dark=False)   # waits for load
    b.evaluate("1 + 1")                                # the value
    b.errors                                           # messages of the console and exceptions since open
    b.screenshot("page.png")

As a program it fails if there is no browser.
"""
import base64
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

NAMES = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"]


def find():
    """The path of a browser, None where there is none."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="report-browser-")
        to_read, self.to = os.pipe()
        self.source, from_write = os.pipe()
        high = [os.dup2(fd, 100 + i) for i, fd in enumerate((to_read, from_write))]

        def place():
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self.process = subprocess.Popen(
            [find(), "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run",
             "--disable-dev-shm-usage", "--disable-background-networking", "--hide-scrollbars",
             "--user-data-dir=" + self.folder, "about:blank"],
            preexec_fn=place, close_fds=True, pass_fds=(3, 4), start_new_session=True, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        for fd in (to_read, from_write, *high):
            os.close(fd)
        self.number, self.rest, self.events, self.errors = 0, b"", [], []
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        self.session = None
        self.session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        return self

    def __exit__(self, *_):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for fd in (self.to, self.source):
            os.close(fd)
        shutil.rmtree(self.folder, ignore_errors=True)

    def read(self):
        while b"\0" not in self.rest:
            got = os.read(self.source, 1 << 20)
            if not got:
                raise SystemExit("the browser has ended")
            self.rest += got
        text, _, self.rest = self.rest.partition(b"\0")
        return json.loads(text)

    def note(self, event):
        method, p = event["method"], event["params"]
        if method == "Runtime.exceptionThrown":
            self.errors.append(p["exceptionDetails"].get("exception", {}).get("description", str(p)))
        elif method == "Log.entryAdded":
            self.errors.append(p["entry"]["text"])
        elif method == "Runtime.consoleAPICalled":
            self.errors.append(str(p["args"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(p["request"]["url"])
        self.events.append(method)

    def call(self, method, params=None):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params or {}}
        if getattr(self, "session", None):
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            got = self.read()
            if got.get("id") == self.number:
                if "error" in got:
                    raise SystemExit(f"{method}: {got['error']}")
                return got["result"]
            if "method" in got:
                self.note(got) if "sessionId" in got else None

    def open(self, path, width=1400, height=900, dark=False):
        self.errors, self.events, self.requests = [], [], []
        self.call("Emulation.setDeviceMetricsOverride",
                  {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})
        self.call("Emulation.setEmulatedMedia",
                  {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})
        self.call("Page.navigate", {"url": pathlib.Path(path).resolve().as_uri()})
        while "Page.loadEventFired" not in self.events:
            got = self.read()
            if "method" in got and "sessionId" in got:
                self.note(got)
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")

    def evaluate(self, text):
        result = self.call("Runtime.evaluate", {"expression": text, "awaitPromise": True, "returnByValue": True})
        if "exceptionDetails" in result:
            raise SystemExit(f"{text}: {result['exceptionDetails']['exception'].get('description')}")
        return result["result"].get("value")

    def pointer(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, **more})

    def wait(self, seconds=0.05):
        time.sleep(seconds)
        self.evaluate("new Promise(done => requestAnimationFrame(() => done(0)))")

    def screenshot(self, path, whole=False):
        shot = {"format": "png", "captureBeyondViewport": whole}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            shot["clip"] = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        pathlib.Path(path).write_bytes(base64.b64decode(self.call("Page.captureScreenshot", shot)["data"]))


if __name__ == "__main__":
    sys.exit(not find())

"""A headless Chromium, driven by Chrome's DevTools protocol over a pair of pipes.

The protocol: https://chromedevtools.github.io/devtools-protocol. Messages are JSON and
end with a zero byte. With `--remote-debugging-pipe` Chromium reads them from file 3 and
writes them to file 4.
"""

import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = "--headless=new --disable-gpu --disable-dev-shm-usage --disable-extensions"
OPTIONS += " --disable-background-networking --no-first-run --hide-scrollbars"
OPTIONS += " --no-sandbox"  # not there for root, as whom CI runs; the pages are our own
# other hosts are not there: what a page would load from them fails
ALONE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"


class Tab:
    """A page of a browser."""

    def __init__(self, commands: int, replies: int):
        self._commands, self._replies = commands, replies
        self._rest, self._calls, self._session = b"", 0, {}
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params) -> dict[str, Any]:
        """The result of a command; events that come before it are kept in `events`."""
        self._calls += 1
        message = {"id": self._calls, "method": method, "params": params}
        os.write(self._commands, json.dumps(message | self._session).encode() + b"\0")
        while (reply := self._receive()).get("id") != self._calls:
            self.events.append(reply)
        assert "error" not in reply, (method, reply["error"])
        return reply["result"]

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page, or what its promise resolves to."""
        options = {"returnByValue": True, "awaitPromise": True}
        done = self.call("Runtime.evaluate", expression=expression, **options)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def open(self, url: str) -> None:
        """Loads a page with all that it names, and waits until it has run."""
        self.events.clear()
        self.call("Page.navigate", url=url)
        while not any(e["method"] == "Page.loadEventFired" for e in self.events):
            self.events.append(self._receive())

    def _receive(self, seconds: float = 30) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while b"\0" not in self._rest:
            left = end - time.monotonic()
            if left < 0 or not select.select([self._replies], [], [], left)[0]:
                raise TimeoutError(f"Chromium said nothing for {seconds} s")
            read = os.read(self._replies, 1 << 20)
            if not read:
                raise ConnectionError("Chromium ended")
            self._rest += read
        message, self._rest = self._rest.split(b"\0", 1)
        return json.loads(message)


@contextmanager
def browser(profile) -> Iterator[Tab]:
    """A tab of a new browser, with its profile; skips the test where there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("Chromium is missing: `apt-get install chromium`")
    command = [found, *OPTIONS.split(), ALONE, "--remote-debugging-pipe"]
    command.append(f"--user-data-dir={profile}")
    read_commands, commands = os.pipe()
    replies, write_replies = os.pipe()
    redirected = f'exec "$@" 3<&{read_commands} 4>&{write_replies}'
    process = subprocess.Popen(
        ["bash", "-c", redirected, "-", *command],
        pass_fds=(read_commands, write_replies),
        stderr=subprocess.DEVNULL,
    )
    os.close(read_commands)
    os.close(write_replies)
    try:
        yield Tab(commands, replies)
    finally:
        process.terminate()
        process.wait(timeout=30)
        os.close(commands)
        os.close(replies)

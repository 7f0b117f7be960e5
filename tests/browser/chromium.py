"""A real Chromium, told what to do through its own debugging pipe."""

import base64
import fcntl
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_SWITCHES = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # should a page ask for a host, no machine outside hears of it
)
_PASS_PIPES = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
_SECONDS = 60.0


class Chromium:
    """One browser with one page."""

    def __init__(self, executable: str, profile: Path) -> None:
        theirs_in, ours_out = map(_high, os.pipe())
        ours_in, theirs_out = map(_high, os.pipe())
        sandbox = [] if os.geteuid() else ["--no-sandbox"]  # Chromium refuses to run as root with it
        pipes = [sys.executable, "-c", _PASS_PIPES, str(theirs_in), str(theirs_out)]
        # It speaks on file descriptors 3 and 4, and lives as long as this object.
        self._process = subprocess.Popen(
            [*pipes, executable, *_SWITCHES, *sandbox, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (theirs_in, theirs_out):
            os.close(end)
        self._in, self._out = ours_in, ours_out
        self._left = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Ask for something, and wait for the answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def open(self, path: Path, *, width: int = 1400, dark: bool = False) -> None:
        """Load a file and wait until all of it is there."""
        self.events.clear()
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": ["light", "dark"][dark]}])
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500)
        self.call("Page.navigate", url=path.as_uri())
        while not self.named("Page.loadEventFired"):
            self._read()
        self.call("Runtime.evaluate", expression="0")  # all that was said until now has come

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def count(self, selector: str) -> int:
        """How many elements a CSS selector finds, without any script in the page."""
        root = self.call("DOM.getDocument", depth=0)["root"]["nodeId"]
        return len(self.call("DOM.querySelectorAll", nodeId=root, selector=selector)["nodeIds"])

    def press(self, key: str, code: int) -> None:
        """A key on what has the focus."""
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def named(self, *methods: str) -> list[dict[str, Any]]:
        """What the browser has told since the page was opened."""
        return [event for event in self.events if event["method"] in methods]

    @property
    def complaints(self) -> list[dict[str, Any]]:
        """What stands in its console, and what would have stopped it: refusals of the policy, errors, dialogs."""
        kinds = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Page.javascriptDialogOpening")
        return [event["params"] for event in self.named(*kinds)]

    @property
    def requests(self) -> list[str]:
        return [event["params"]["request"]["url"] for event in self.named("Network.requestWillBeSent")]

    def screenshot(self, path: Path) -> None:
        """The whole page, as a PNG."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def print(self, path: Path) -> None:
        """The page on paper, as a PDF."""
        path.write_bytes(base64.b64decode(self.call("Page.printToPDF", printBackground=False)["data"]))

    def close(self) -> None:
        self._session = None
        try:
            self.call("Browser.close")
            self._process.wait(10)
        except (OSError, EOFError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        for end in (self._in, self._out):
            os.close(end)

    def _read(self) -> dict[str, Any]:
        """The next message; those that answer nothing are kept."""
        deadline = time.monotonic() + _SECONDS
        while b"\0" not in self._left:
            ready, _, _ = select.select([self._in], [], [], max(deadline - time.monotonic(), 0.0))
            if not ready:
                raise TimeoutError(f"Chromium said nothing for {_SECONDS:.0f} s")
            part = os.read(self._in, 1 << 20)
            if not part:
                raise EOFError("Chromium has ended")
            self._left += part
        message, _, self._left = self._left.partition(b"\0")
        read = json.loads(message)
        if "method" in read:
            self.events.append(read)
        return read


def _high(descriptor: int) -> int:
    """The same pipe under a number that meets neither of the two that Chromium listens on."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return moved

"""
Drive a real Chromium: open pages, click, type, look at the screen, and hear what goes wrong.

It is spoken to by its debugging protocol over a pair of pipes, so that no package is needed.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from select import select
from typing import Any, Self

import pytest
from tests.browser import FLAGS, find_browser

DEADLINE_S = 120.0
POLL_S = 0.05
ABOVE = 64
"""Descriptors below may be the ones that Chromium reads and writes: 3 and 4."""
LAUNCH = """
import os, sys
for theirs, its in zip(sys.argv[1:3], (3, 4)): os.dup2(int(theirs), its)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Chromium:
    """A browser with one page, alive inside a `with` block."""

    def __init__(self) -> None:
        program = find_browser()
        if program is None:
            pytest.skip("there is no Chromium here, and it could not be installed with apt-get")
        self._program = program
        self.problems: list[str] = []
        """Errors that the page logged: exceptions, refused resources, violations of its policy."""
        self._buffer = b""
        self._number = 0
        self._answers: dict[int, Any] = {}
        self._session = ""

    def __enter__(self) -> Self:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        ours, theirs = [], []
        for read, write in (os.pipe(), os.pipe()[::-1]):
            theirs.append(fcntl.fcntl(read, fcntl.F_DUPFD, ABOVE))
            ours.append(write)
            os.close(read)
        self._commands, self._events = ours
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-c", LAUNCH, *map(str, theirs), self._program),
                *(*FLAGS, "--remote-debugging-pipe", "--hide-scrollbars"),
                f"--user-data-dir={self._profile.name}",
            ],
            pass_fds=theirs,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for each in theirs:
            os.close(each)
        try:
            self._attach()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _attach(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        os.close(self._commands)
        os.close(self._events)
        self._profile.cleanup()

    def call(self, method: str, **parameters: Any) -> Any:
        """Send a command; return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        deadline_s = time.monotonic() + DEADLINE_S
        while self._number not in self._answers:
            assert time.monotonic() < deadline_s, f"Chromium does not answer {method}"
            self._receive(1.0)
        answer = self._answers.pop(self._number)
        assert "error" not in answer, f"{method}: {answer.get('error')}"
        return answer["result"]

    def _receive(self, timeout_s: float) -> None:
        if not select([self._events], [], [], timeout_s)[0]:
            return
        self._buffer += os.read(self._events, 1 << 20)
        *messages, self._buffer = self._buffer.split(b"\0")
        for each in map(json.loads, messages):
            if "id" in each:
                self._answers[each["id"]] = each
            else:
                self._note(each["method"], each["params"])

    def _note(self, method: str, found: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            details = found["exceptionDetails"]
            thrown = details.get("exception", {}).get("description", "")
            self.problems.append(f"{details['text']} {thrown}")
        elif method == "Log.entryAdded" and found["entry"]["level"] == "error":
            entry = found["entry"]
            self.problems.append(f"{entry['text']} {entry.get('url', '')}")
        elif method == "Runtime.consoleAPICalled" and found["type"] in ("error", "assert"):
            self.problems.append(str(found["args"]))

    def screen(self, width: int, *, height: int = 900, scheme: str = "light") -> None:
        """Have a screen of this size, and these colours."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme_feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[scheme_feature])

    def open(self, url: str) -> None:
        """Go to a page."""
        self.call("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page, once it is there if it is a promise."""
        found = self.call(
            "Runtime.evaluate",
            expression=script,
            returnByValue=True,
            awaitPromise=True,
            userGesture=True,
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, script: str, what: str = "") -> Any:
        """Return the value of an expression once it is true."""
        deadline_s = time.monotonic() + DEADLINE_S
        while not (value := self.run(script)):
            assert time.monotonic() < deadline_s, f"{what or script}\n{self.text}"
            self._receive(POLL_S)
        return value

    def wait_for(self, text: str) -> None:
        """Return once the page shows a text."""
        self.wait(f"document.body?.innerText.includes({json.dumps(text)})", f"no {text!r}")

    @property
    def text(self) -> str:
        """What a person reads."""
        return str(self.run("document.body?.innerText ?? ''"))

    def click(self, selector: str, text: str = "") -> None:
        """Click the first element of a kind that is shown, and that has a text."""
        self.wait(
            f"(() => {{ const found = [...document.querySelectorAll({json.dumps(selector)})]"
            f".find((each) => each.checkVisibility() && !each.disabled"
            f" && each.textContent.includes({json.dumps(text)}));"
            " found?.click(); return Boolean(found); })()",
            f"nothing to click: {selector} {text}",
        )

    def type(self, selector: str, text: str) -> None:
        """Type into the first field of a kind."""
        self.wait(f"Boolean(document.querySelector({json.dumps(selector)}))")
        self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        self.call("Input.insertText", text=text)

    def key(self, name: str) -> None:
        """Press a key."""
        text = {"Enter": "\r", "Tab": "\t"}.get(name, name if len(name) == 1 else "")
        code = {"Enter": 13, "Tab": 9, "Escape": 27}.get(name, ord(name[0]))
        for kind in ("keyDown", "keyUp"):
            fields: dict[str, Any] = {"type": kind, "key": name, "windowsVirtualKeyCode": code}
            if kind == "keyDown" and text and name != "Tab":
                fields["text"] = text
            self.call("Input.dispatchKeyEvent", **fields)

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Write a picture of the screen, or of the whole page."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def until(self, is_true: Callable[[], bool], what: str) -> None:
        """Wait for something outside of the page."""
        deadline_s = time.monotonic() + DEADLINE_S
        while not is_true():
            assert time.monotonic() < deadline_s, what
            self._receive(POLL_S)

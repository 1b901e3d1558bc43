"""Headless Chromium, driven through its pipe for debuggers."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

_ANSWERS_WITHIN = 60.0  # seconds


class Browser:
    """One page. `problems`: what the page wrote to the console, exceptions, and refusals by its policy.
    `hosts`: the hosts that it sent requests to."""

    def __init__(self, width: int = 1280, height: int = 900, *, dark: bool = False) -> None:
        executable = shutil.which("chromium")
        assert executable, "apt install chromium"
        self.problems: list[Any] = []
        self.hosts: set[str] = set()
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        # Chromium reads commands from descriptor 3, and writes to descriptor 4.
        shell = f'exec 3<&{theirs} 4>&{answers}; exec "$@"'
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        options += [
            "--remote-debugging-pipe",
            f"--user-data-dir={self._folder.name}",
            "about:blank",
        ]
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "bash", executable, *options],
            pass_fds=(theirs, answers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs)
        os.close(answers)
        self._number, self._read, self._session = 0, b"", ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(f"{domain}.enable")
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._session = ""
        try:
            self.call("Browser.close")  # with all its processes
            self._process.wait(10)
        finally:
            self._process.kill()
            self._process.wait()
        os.close(self._commands)
        os.close(self._answers)
        self._folder.cleanup()

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def evaluate(self, expression: str) -> Any:
        options = {"returnByValue": True, "awaitPromise": True}
        reply = self.call("Runtime.evaluate", expression=expression, **options)
        assert "exceptionDetails" not in reply, reply
        return reply["result"].get("value")

    def until(self, expression: str) -> None:
        """Waits until an expression is true."""
        deadline = time.monotonic() + _ANSWERS_WITHIN
        while not self.evaluate(expression):
            assert time.monotonic() < deadline, expression
            time.sleep(0.05)

    def press(self, key: str, code: int) -> None:
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            named = {"key": key, "code": key, "windowsVirtualKeyCode": code}
            self.call("Input.dispatchKeyEvent", type=kind, **named, **text)

    def spoken(self) -> set[tuple[str, str]]:
        """Role and name of everything that a screen reader announces."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        visible = [each for each in nodes if not each["ignored"]]
        return {(n["role"]["value"], n.get("name", {}).get("value", "")) for n in visible}

    def screenshot(self, path: Path) -> None:
        """Takes a picture of the whole page."""
        picture = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(picture["data"]))

    def call(self, method: str, **parameters: Any) -> Any:
        """Calls a method of the protocol for debuggers, and returns its result."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while True:
            message = self._message()
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]
            self._note(message)

    def _note(self, event: dict[str, Any]) -> None:
        kind, about = event.get("method"), event.get("params", {})
        if kind in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
            self.problems.append(about)
        elif kind == "Network.requestWillBeSent":
            self.hosts.add(about["request"]["url"].split("/")[2])

    def _message(self) -> dict[str, Any]:
        deadline = time.monotonic() + _ANSWERS_WITHIN
        while b"\0" not in self._read:
            ready, _, _ = select.select([self._answers], [], [], deadline - time.monotonic())
            assert ready, "the browser does not answer"
            part = os.read(self._answers, 1 << 20)
            assert part, "the browser has ended"
            self._read += part
        text, _, self._read = self._read.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

"""A visitor of the console without a browser: its requests, a cookie and a token."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from tests.servers import HOST, ServerProcess


class Page:
    """What a browser keeps of the console: a cookie and a token."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.cookie = ""
        self.token = "none"
        self.set_cookie = ""

    def send(
        self, path: str, fields: Any = None, *, data: bytes | None = None, **headers: str
    ) -> tuple[int, Any]:
        """Return the status of a request, and the answer."""
        body = data if data is not None else json.dumps(fields or {}).encode()
        sent = {"Cookie": self.cookie, "X-Penstock-Token": self.token}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(
            f"http://{HOST}:{self.server.http_port}/console/{path}",
            body,
            {name: value for name, value in sent.items() if value},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                self.set_cookie = answer.headers.get("Set-Cookie", "")
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                text = error.read()
            return error.code, json.loads(text) if text.startswith(b"{") else text.decode()

    def sign_in(self, user: str = "ann") -> Page:
        status, found = self.send("sign-in", {"user": user, "password": "pw"})
        assert 200 == status, found
        self.cookie, self.token = self.set_cookie.partition(";")[0], found["token"]
        return self

    def read(self, what: str, **fields: Any) -> tuple[int, Any]:
        return self.send("read", {"what": what, **fields})

    def do(self, action: str, **fields: Any) -> tuple[int, Any]:
        return self.send("do", {"action": action, **fields})

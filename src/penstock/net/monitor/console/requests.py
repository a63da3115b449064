"""
Requests of the console's page: signing in and out, reading, and acting.

All of it is off unless `monitor.actions` is set, and all but signing in is for those who have.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TYPE_CHECKING, Any

from penstock.errors import JetStreamError, PenstockError
from penstock.net.monitor import pagefiles
from penstock.net.monitor.console import actions, fields, letters, reading
from penstock.net.monitor.console.fields import Fields
from penstock.net.monitor.console.signing import Refused, Visit, Visits
from penstock.net.monitor.http import HttpRequest, Response

if TYPE_CHECKING:
    from penstock.net.monitor.watched import Watched

Json = dict[str, Any]
Read = Callable[["Watched", Visit, Fields], Awaitable[Json]]

PREFIX = "/console/"
PRIVATE = {"Cache-Control": "no-store"}
STRANGERS_BODY_MAX = 4096
BODY_MAX = 1024 * 1024
REQUEST_S = 30.0
READS: dict[str, Read] = {**reading.READS, "letters": letters.listed}


class Requests:
    """The requests of the page to one server."""

    def __init__(self, server: Watched) -> None:
        self._server = server
        self._visits = Visits(server, monotonic)
        self._posts: dict[str, Callable[[HttpRequest], Awaitable[Response]]] = {
            f"{PREFIX}sign-in": self._sign_in,
            f"{PREFIX}sign-out": self._sign_out,
            f"{PREFIX}read": self._read,
            f"{PREFIX}do": self._do,
        }

    def body_max(self, request: HttpRequest) -> int:
        """Return how long the body of a POST may be: little for those who have not signed in."""
        if request.path not in self._posts or not self._visits.is_offered:
            return 0
        return BODY_MAX if self._visits.of(request) is not None else STRANGERS_BODY_MAX

    async def respond(self, request: HttpRequest) -> Response:
        """Answer a request below `/console/`."""
        if request.method != "POST":
            if request.path == f"{PREFIX}session":
                return self._session(request)
            return pagefiles.file(request.path.removeprefix(PREFIX))
        try:
            async with asyncio.timeout(REQUEST_S):
                return await self._posts[request.path](request)
        except Refused as error:
            return _json({"error": str(error)}, error.status)
        except JetStreamError as error:
            return _json({"error": error.description}, 409)
        except PenstockError as error:
            return _json({"error": str(error)}, 409)
        except TimeoutError:
            return _json({"error": f"no answer within {REQUEST_S:.0f} s"}, 504)

    async def close(self) -> None:
        """Sign everybody out."""
        await self._visits.close()

    def _session(self, request: HttpRequest) -> Response:
        """Tell who is signed in, and whether anybody may."""
        visit = self._visits.of(request)
        found = visit.as_json() if visit is not None else {}
        return _json({"is_offered": self._visits.is_offered} | found)

    async def _sign_in(self, request: HttpRequest) -> Response:
        visit, cookie = await self._visits.sign_in(request, fields.parse(request.body))
        return _json({"is_offered": True} | visit.as_json(), Set_Cookie=cookie)

    async def _sign_out(self, request: HttpRequest) -> Response:
        cookie = await self._visits.sign_out(request)
        return _json({"is_offered": self._visits.is_offered}, Set_Cookie=cookie)

    async def _read(self, request: HttpRequest) -> Response:
        visit = self._visits.check(request)
        asked = fields.parse(request.body)
        read = READS.get(fields.text(asked, "what"))
        if read is None:
            raise Refused(400, "there is nothing of that name to read")
        return _json(await read(self._server, visit, asked))

    async def _do(self, request: HttpRequest) -> Response:
        visit = self._visits.check(request)
        return _json(await actions.act(self._server, visit, fields.parse(request.body)))


def _json(document: Json, status: int = 200, **headers: str) -> Response:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    body = json.dumps(document).encode()
    return Response(status, body, "application/json", PRIVATE | given)

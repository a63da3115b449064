"""
Signing in to the console: who has, and which requests are really theirs.

Whoever signs in gets a cookie, which scripts cannot read and other sites' requests do not carry,
and a token, which each request has to name in a header that other sites cannot send. A visit ends
with the user's connection, by signing out, or when nothing was asked for a while.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from penstock.client import Client
from penstock.core.reports.record import user_of
from penstock.core.session import Session
from penstock.errors import ConnectFailed
from penstock.net.monitor.console import inside
from penstock.net.monitor.http import HttpRequest

if TYPE_CHECKING:
    from penstock.net.monitor.watched import Watched

log = logging.getLogger("penstock")

VISITS_MAX = 64
IDLE_S = 1800.0
ATTEMPTS_MAX = 8
"""How many may sign in at once; each failure takes `FAILURE_S`, so nobody tries many passwords."""
FAILURE_S = 1.0
TOKEN_HEADER = "x-penstock-token"
CREDENTIAL_CHARACTERS_MAX = 1024


class Refused(Exception):
    """A request that is refused, with its HTTP status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass
class Visit:
    """Somebody who has signed in."""

    client: Client
    session: Session
    user: str
    account: str
    peer: str
    token: str
    """Proves that a request comes from our page."""
    used_s: float

    def as_json(self) -> dict[str, Any]:
        """Return what the page may know."""
        system = self.session.broker.system_account
        return {
            "user": self.user,
            "account": self.account,
            "is_operator": self.session.account is system,
            "token": self.token,
        }


class Visits:
    """Everybody who has signed in to one server."""

    def __init__(self, server: Watched, clock_s: Callable[[], float]) -> None:
        self._server = server
        self._clock_s = clock_s
        self._visits: dict[str, Visit] = {}
        """By the value of the cookie, the one used least recently first."""
        self._attempts = 0

    @property
    def is_offered(self) -> bool:
        """Whether users may sign in."""
        config = self._server.config
        return config.monitor_actions and config.authorization.required

    @property
    def _cookie(self) -> str:
        # Cookies are not told apart by port, and there may be another server beside this one.
        return f"penstock-{self._server.broker.server_id[-12:]}"

    def of(self, request: HttpRequest) -> Visit | None:
        """Return the visit that a request's cookie names, if it is not over."""
        self._end_old()
        cookies = SimpleCookie()
        try:
            cookies.load(request.headers.get("cookie", ""))
        except CookieError:
            return None
        found = cookies.get(self._cookie)
        return self._visits.get(found.value) if found is not None else None

    def check(self, request: HttpRequest) -> Visit:
        """Return who asks; refuse others, and requests that another site may have sent."""
        check_origin(request)
        visit = self.of(request)
        if visit is None:
            raise Refused(401, "sign in first; who was signed in has been away for too long")
        token = request.headers.get(TOKEN_HEADER, "")
        if not hmac.compare_digest(token.encode(), visit.token.encode()):
            raise Refused(403, "this request does not come from the console; load the page again")
        visit.used_s = self._clock_s()
        key = next(key for key, each in self._visits.items() if each is visit)
        self._visits[key] = self._visits.pop(key)
        return visit

    async def sign_in(self, request: HttpRequest, fields: Mapping[str, Any]) -> tuple[Visit, str]:
        """Return a new visit and the cookie that names it."""
        check_origin(request)
        if TOKEN_HEADER not in request.headers:
            raise Refused(403, "this request does not come from the console")
        if self._attempts >= ATTEMPTS_MAX:
            raise Refused(503, "too many are signing in; try again")
        self._attempts += 1
        try:
            visit = await self._connect(request, credentials_of(fields))
        finally:
            self._attempts -= 1
        key = secrets.token_urlsafe(24)
        self._visits[key] = visit
        if len(self._visits) > VISITS_MAX:
            await self._end(next(iter(self._visits)))
        log.info("Console: %s signed in from %s", name_of(visit), visit.peer)
        return visit, self._cookie_of(key)

    async def _connect(self, request: HttpRequest, credentials: dict[str, str]) -> Visit:
        try:
            client, session = await inside.connect(self._server, credentials, request.peer)
        except ConnectFailed as error:
            log.warning("Console: sign-in from %s failed", request.peer[0])
            await asyncio.sleep(FAILURE_S)
            wrong = "wrong user or password, or a user who may not connect like this"
            if error.is_final:
                raise Refused(401, wrong) from None
            raise Refused(503, str(error).rpartition(": ")[2]) from None
        return Visit(
            client=client,
            session=session,
            user=user_of(session) or "token",
            account=session.account.name,
            peer=request.peer[0],
            token=secrets.token_urlsafe(24),
            used_s=self._clock_s(),
        )

    async def sign_out(self, request: HttpRequest) -> str:
        """End the visit of a request; return the cookie that says so."""
        visit = self.check(request)
        for key, each in list(self._visits.items()):
            if each is visit:
                await self._end(key)
        return f"{self._cookie_of('')}; Max-Age=0"

    async def close(self) -> None:
        """End all visits."""
        for key in list(self._visits):
            await self._end(key)

    async def _end(self, key: str) -> None:
        await self._visits.pop(key).client.close()

    def _end_old(self) -> None:
        """Forget visits that are over: unused, kicked, or of users who are gone."""
        now_s = self._clock_s()
        for key, visit in list(self._visits.items()):
            if visit.client.closed or now_s - visit.used_s > IDLE_S:
                del self._visits[key]
                if visit.session.transport is not None:
                    visit.session.transport.close("Client Closed")

    def _cookie_of(self, key: str) -> str:
        secure = "; Secure" if self._server.config.https_port is not None else ""
        return f"{self._cookie}={key}; Path=/; HttpOnly; SameSite=Strict{secure}"


def check_origin(request: HttpRequest) -> None:
    """Refuse a request that a browser sends for another site."""
    origin = request.headers.get("origin")
    site = request.headers.get("sec-fetch-site", "same-origin")
    is_ours = origin is None or urlsplit(origin).netloc == request.headers.get("host", "")
    if not is_ours or site not in ("same-origin", "none"):
        raise Refused(403, "this request comes from another site")


def credentials_of(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return what was given to sign in with: a user and a password, or a token."""
    user, password = fields.get("user", ""), fields.get("password", "")
    for text in (user, password):
        if not isinstance(text, str) or len(text) > CREDENTIAL_CHARACTERS_MAX:
            raise Refused(400, "user and password are texts, and not long ones")
    if user:
        return {"user": user, "password": password}
    if password:
        return {"token": password}
    raise Refused(400, "a user and a password are needed, or a token")


def name_of(visit: Visit) -> str:
    """Return who it is, for the log."""
    return f"user {visit.user!r} of account {visit.account!r}"

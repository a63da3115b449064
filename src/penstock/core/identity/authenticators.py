"""Choose an authenticator: by the configuration file, by account tokens, by callout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.config.accounts import User
from penstock.config.server import Authorization
from penstock.config.transport import WebSocketConfig
from penstock.core.identity.auth import Authenticator, Verified

if TYPE_CHECKING:
    from penstock.core.identity.tokenauth import TokenAuthenticator


def authenticator_for(
    authorization: Authorization, verified: Verified, *, may_ask: bool = True
) -> Authenticator | TokenAuthenticator:
    """
    Return the authenticator for a configuration.

    With `may_ask=False`, never use the auth callout.
    """
    rules = authorization.auth_callout if may_ask else None
    if not authorization.trusts_operators and rules is None:
        return Authenticator(authorization, verified)
    from penstock.core.identity.asking import AskingAuthenticator, AskingTokenAuthenticator

    if rules is None or authorization.trusts_operators:
        return AskingTokenAuthenticator(authorization)
    return AskingAuthenticator(authorization, rules, verified)


def websocket_authenticator(
    websocket: WebSocketConfig | None, verified: Verified
) -> Authenticator | None:
    """Return the authenticator for WebSocket clients, if they have their own users."""
    if websocket is None or not websocket.has_own_users:
        return None
    if websocket.token is not None:
        return Authenticator(Authorization(token=websocket.token), verified)
    user = User(name=websocket.username or "", password=websocket.password)
    return Authenticator(Authorization(users=(user,)), verified)

"""
Secrets taken out of what others get to see.

A password may stand in a URL or behind a flag. Whoever shows a URL, an argument or an
error that quotes one passes it through here first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

REDACTED = "[REDACTED]"

USER_INFO = re.compile(r"(://)[^\s/?#'\"`,]*@")
"""Who somebody is, in a URL; up to the last `@`, because a password may have one as well."""

SECRET_FLAG = re.compile(
    r"--?[\w.-]*(?:pass|auth|user|token|secret|seed|nkey|cred|key)[\w.-]*", re.IGNORECASE | re.ASCII
)
"""A flag whose value is for nobody else; rather one too many than one too few."""


def redact(text: str) -> str:
    """Return a text without the users and passwords of its URLs."""
    return USER_INFO.sub(rf"\1{REDACTED}@", text)


def redact_arguments(arguments: Iterable[str]) -> list[str]:
    """Return a command line without its secrets: what follows a flag for one, and users in URLs."""
    shown: list[str] = []
    is_secret = False
    for argument in arguments:
        flag, equals, _ = argument.partition("=")
        is_flag = SECRET_FLAG.fullmatch(flag) is not None
        if is_flag and equals:
            shown.append(f"{flag}={REDACTED}")
        elif is_secret:
            shown.append(REDACTED)
        else:
            shown.append(redact(argument))
        # A secret may look like a flag, so only one that was not taken for a value is one.
        is_secret = is_flag and not equals and not is_secret
    return shown

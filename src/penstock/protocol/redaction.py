"""
Remove secrets from texts that others get to see.

A password may be in a URL or after a flag. Code that shows a URL, an argument or an error
that quotes one passes it through here first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

REDACTED = "[REDACTED]"

USER_INFO = re.compile(r"(://)[^\s/?#'\"`,]*@")
"""The user in a URL, up to the last `@`, because a password may contain one."""

SECRET_FLAG = re.compile(
    r"--?[\w.-]*(?:pass|auth|user|token|secret|seed|nkey|cred|key)[\w.-]*", re.IGNORECASE | re.ASCII
)
"""A flag whose value is secret; better one flag too many than one too few."""


def redact(text: str) -> str:
    """Return a text without the users and passwords of its URLs."""
    return USER_INFO.sub(rf"\1{REDACTED}@", text)


def redact_arguments(arguments: Iterable[str]) -> list[str]:
    """Return a command line without its secrets: values of secret flags, and users in URLs."""
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
        # A secret may look like a flag, so a flag only counts if it is not itself a value.
        is_secret = is_flag and not equals and not is_secret
    return shown

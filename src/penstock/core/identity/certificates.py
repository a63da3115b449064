"""
Find the user in a client's certificate, for `verify_and_map`.

A certificate names a user by one of its e-mail addresses, DNS names or URIs, or by its
distinguished name, with the parts in any order.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from penstock.core.identity.tls import Certificate

PART = re.compile(r"((?:\\.|[^,\\])*),?", re.DOTALL)
ESCAPE = re.compile(r"\\([0-9a-fA-F]{2}|.)", re.DOTALL)

Name = Counter[tuple[str, str]]


def user_in(certificate: Certificate, users: Iterable[str]) -> str | None:
    """Return the first user that a certificate names."""
    # A dict keeps the order of users, and looks up each of perhaps thousands of names at once.
    known = dict.fromkeys(users)
    for name in (*certificate.emails, *certificate.dns_names, *certificate.uris):
        if name in known:
            return name
    own: Name = Counter((kind.upper(), value) for kind, value in certificate.subject)
    if not own:
        return None
    return next((user for user in known if distinguished_name(user) == own), None)


def distinguished_name(text: str) -> Name | None:
    """Return the parts of a distinguished name; None if the text is not one."""
    parts: Name = Counter()
    for part in PART.findall(text):
        if not part:
            continue
        kind, equals, value = part.partition("=")
        if not equals:
            return None
        parts[kind.strip().upper(), ESCAPE.sub(_unescaped, value.strip())] += 1
    return parts or None


def _unescaped(found: re.Match[str]) -> str:
    code = found[1]
    return chr(int(code, 16)) if len(code) == 2 else code

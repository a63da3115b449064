"""
Permission templates of signing keys, filled in for each user.

The placeholders are `{{name()}}`, `{{subject()}}`, `{{tag(x)}}` and the same for the
account. A tag with several values makes one subject for each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, product

from penstock.config.accounts import Account, Permissions, SubjectRules
from penstock.keys.tokens import Claims
from penstock.protocol.subjects import is_valid

PLACE = re.compile(r"\{\{\s*([a-zA-Z-]+)\(([^(){}]*)\)\s*\}\}")
SUBJECTS_MAX = 4096


class InvalidTemplate(ValueError):
    """A template that cannot be filled in for a user."""


def filled(permissions: Permissions, claims: Claims, account: Account) -> Permissions:
    """Return permissions with the placeholders filled in for a user and its account."""
    user = _Filler(claims, account)
    return replace(
        permissions,
        publish=user.rules(permissions.publish),
        subscribe=user.rules(permissions.subscribe),
    )


class _Filler:
    """Fills in the placeholders for one user."""

    def __init__(self, claims: Claims, account: Account) -> None:
        self._claims = claims
        self._account = account

    def rules(self, rules: SubjectRules) -> SubjectRules:
        """Return rules with all placeholders filled in."""
        deny = self._subjects(rules.deny, is_strict=True)
        if not rules.allow:
            return replace(rules, deny=deny)
        allow = self._subjects(rules.allow, is_strict=False)
        if not allow:
            # Nothing allowed is left. An empty allow list would allow everything, so deny
            # everything.
            return SubjectRules(allow=None, deny=(*deny, ">"))
        return SubjectRules(allow=allow, deny=deny)

    def _subjects(self, templates: tuple[str, ...], *, is_strict: bool) -> tuple[str, ...]:
        found: list[str] = []
        for template in templates:
            made = list(islice(self._made(template), SUBJECTS_MAX + 1))
            good = [each for each in made if all(is_valid(word.encode()) for word in each.split())]
            if is_strict and (len(good) < len(made) or not made):
                raise InvalidTemplate(template)
            found += good
            if len(found) > SUBJECTS_MAX:
                raise InvalidTemplate(template)
        return tuple(found)

    def _made(self, template: str) -> Iterator[str]:
        places = [match[0] for match in PLACE.finditer(template)]
        values = [self._values(match[1].lower(), match[2]) for match in PLACE.finditer(template)]
        for chosen in product(*values):
            subject = template
            for place, value in zip(places, chosen, strict=True):
                subject = subject.replace(place, value)
            yield subject

    def _values(self, name: str, argument: str) -> list[str]:
        claims, account = self._claims, self._account
        single = {
            "name": claims.name,
            "subject": claims.subject,
            "account-name": account.label,
            "account-subject": account.name,
        }
        if name in single and not argument:
            return [single[name]]
        assert account.claims is not None, "only accounts with tokens have templates"
        tags = {"tag": claims.tags, "account-tag": account.claims.tags}.get(name)
        if tags is None:
            raise InvalidTemplate(name)
        prefix = f"{argument.lower()}:"
        return [tag.removeprefix(prefix) for tag in tags if tag.startswith(prefix)]

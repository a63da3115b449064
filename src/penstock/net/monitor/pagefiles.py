"""
The files of the console's page, and the rules that browsers are given for it.

The page uses nothing from elsewhere, and its policy says so: only scripts and styles of this
server run, whatever a name or a payload contains.
"""

from __future__ import annotations

from functools import cache
from importlib import resources

from penstock.net.monitor.http import Response, plain

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
POLICY = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'"
    ),
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
NOT_FOUND = plain(404, "404 page not found\n")


def file(name: str) -> Response:
    """Return a file of the page."""
    content = files().get(name)
    if content is None:
        return NOT_FOUND
    return Response(200, content, TYPES[name.rpartition(".")[2]], POLICY)


@cache
def files() -> dict[str, bytes]:
    """Return all files of the page by name."""
    folder = resources.files("penstock.net.monitor").joinpath("page")
    return {each.name: each.read_bytes() for each in folder.iterdir()}

"""The context of a verb that connects: a client, the arguments, and ways to print."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.arguments import Argument, argument
from penstock.errors import ConfigError
from penstock.protocol.times import SECOND_NS
from penstock.protocol.units import read_duration

if TYPE_CHECKING:
    from argparse import Namespace

    from penstock.client import Client, JetStream

SERVER = "nats://127.0.0.1:4222"
ENVIRONMENT = {
    "server": "NATS_URL",
    "user": "NATS_USER",
    "password": "NATS_PASSWORD",
    "token": "NATS_TOKEN",
    "creds": "NATS_CREDS",
    "nkey": "NATS_NKEY",
}
"""The environment variables behind the options; the names are those of the `nats` command."""

TIMEOUT_NS = 5 * SECOND_NS


def _connection(*names: str, doc: str, **settings: Any) -> Argument:
    return argument(*names, doc=doc, section="Connection", **settings)


CONNECTION = (
    _connection(
        "-s",
        "--server",
        metavar="URL",
        doc=f"Servers, separated by commas (default: NATS_URL, else {SERVER}).",
    ),
    _connection("--user", metavar="NAME", doc="User name (default: NATS_USER)."),
    _connection("--password", metavar="TEXT", doc="Password of the user (default: NATS_PASSWORD)."),
    _connection("--token", metavar="TEXT", doc="Authentication token (default: NATS_TOKEN)."),
    _connection(
        "--creds", metavar="FILE", doc="Credentials file: a JWT and a seed (default: NATS_CREDS)."
    ),
    _connection(
        "--nkey", metavar="FILE", doc="File with the seed of an nkey (default: NATS_NKEY)."
    ),
    _connection("--domain", metavar="NAME", default="", doc="JetStream domain to use."),
    _connection(
        "--timeout",
        metavar="DURATION",
        type=read_duration,
        default=TIMEOUT_NS,
        doc="Time to wait for an answer (default: 5s).",
    ),
    _connection("--json", action="store_true", doc="Print JSON, for scripts."),
)
"""Options of every verb that connects."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """One run of a verb."""

    arguments: Namespace
    client: Client
    js: JetStream
    errors: list[Exception] = field(default_factory=list)
    """Asynchronous errors from the server."""

    def show(self, text: str, document: Any) -> None:
        """Print a result: text for people, JSON for scripts."""
        if self.arguments.json:
            print(json.dumps(document, indent=2, ensure_ascii=False))
        elif text:
            print(text)

    def show_event(self, text: str, document: Any) -> None:
        """Print one of many results immediately: text, or one line of JSON."""
        line = json.dumps(document, ensure_ascii=False) if self.arguments.json else text
        print(line, flush=True)

    def done(self, text: str, document: Any) -> None:
        """Report a finished action: a sentence for people, JSON for scripts."""
        if self.arguments.json:
            self.show("", document)
        else:
            self.say(text)

    def say(self, text: str) -> None:
        """Print to stderr for people; stdout is for data."""
        print(text, file=sys.stderr, flush=True)


@asynccontextmanager
async def open_context(
    arguments: Namespace, environ: Mapping[str, str], *, name: str
) -> AsyncIterator[Context]:
    """Connect with the options, and close at the end."""
    from penstock.client import connect

    errors: list[Exception] = []

    def lost(error: Exception) -> None:
        print(f"penstock: {error}", file=sys.stderr, flush=True)

    def back() -> None:
        print("penstock: connected again", file=sys.stderr, flush=True)

    timeout_s = arguments.timeout / SECOND_NS
    client = await connect(
        given(arguments, environ, "server") or SERVER,
        name=name,
        on_error=errors.append,
        on_disconnected=lost,
        on_reconnected=back,
        request_timeout_s=timeout_s,
        **identity(arguments, environ),
    )
    async with client:
        js = client.jetstream(domain=arguments.domain, request_timeout_s=timeout_s)
        yield Context(arguments=arguments, client=client, js=js, errors=errors)


def identity(arguments: Namespace, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the identity as client options; unset ones are left to the URL."""
    nkey, creds = (given(arguments, environ, name) for name in ("nkey", "creds"))
    if creds:
        read_text("creds", creds)  # The client would blame the server.
    identity = {
        "user": given(arguments, environ, "user"),
        "password": given(arguments, environ, "password"),
        "token": given(arguments, environ, "token"),
        "credentials": creds,
        "nkey_seed": read_text("nkey", nkey).strip() if nkey else None,
    }
    return {name: value for name, value in identity.items() if value is not None}


def given(arguments: Namespace, environ: Mapping[str, str], name: str) -> str | None:
    value: str | None = getattr(arguments, name)
    return value if value is not None else environ.get(ENVIRONMENT[name]) or None


def read_text(option: str, path: str) -> str:
    """Return the text of a file that an option names."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"`--{option}`: cannot read `{path}`: {reason}") from None

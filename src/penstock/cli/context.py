"""What every verb that talks to a server has: a connection, its arguments, and a way to speak."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.arguments import Argument, argument
from penstock.cli.values import read_duration
from penstock.errors import ConfigError
from penstock.protocol.times import SECOND_NS

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
"""Where an option comes from that was not given; the names are those of the `nats` command."""

TIMEOUT_NS = 5 * SECOND_NS


def _connection(*names: str, doc: str, **settings: Any) -> Argument:
    return argument(*names, doc=doc, section="Connection", **settings)


CONNECTION = (
    _connection(
        "-s",
        "--server",
        metavar="URL",
        doc=f"Server, or several with commas between; NATS_URL, else {SERVER}.",
    ),
    _connection("--user", metavar="NAME", doc="User name; NATS_USER."),
    _connection("--password", metavar="TEXT", doc="Password of the user; NATS_PASSWORD."),
    _connection("--token", metavar="TEXT", doc="Authentication token; NATS_TOKEN."),
    _connection("--creds", metavar="FILE", doc="Credentials: a JWT and a seed; NATS_CREDS."),
    _connection("--nkey", metavar="FILE", doc="File with the seed of an nkey; NATS_NKEY."),
    _connection("--domain", metavar="NAME", default="", doc="JetStream domain to talk to."),
    _connection(
        "--timeout",
        metavar="DURATION",
        type=read_duration,
        default=TIMEOUT_NS,
        doc="How long an answer may take; 5s.",
    ),
    _connection("--json", action="store_true", doc="Print JSON: for scripts."),
)
"""Options of every verb that connects."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """One run of a verb."""

    arguments: Namespace
    client: Client
    js: JetStream
    errors: list[Exception] = field(default_factory=list)
    """What the server complained about on its own."""

    def show(self, text: str, document: Any) -> None:
        """Print a result: text for people, the document for scripts."""
        if self.arguments.json:
            print(json.dumps(document, indent=2, ensure_ascii=False))
        elif text:
            print(text)

    def show_event(self, text: str, document: Any) -> None:
        """Print one of many results, at once: text, or one line of JSON."""
        line = json.dumps(document, ensure_ascii=False) if self.arguments.json else text
        print(line, flush=True)

    def done(self, text: str, document: Any) -> None:
        """Say that something was done; a script gets a document, a person a sentence."""
        if self.arguments.json:
            self.show("", document)
        else:
            self.say(text)

    def say(self, text: str) -> None:
        """Talk to the person; stdout is for data."""
        print(text, file=sys.stderr, flush=True)


@asynccontextmanager
async def open_context(
    arguments: Namespace, environ: Mapping[str, str], *, name: str
) -> AsyncIterator[Context]:
    """Connect as the options say, and close at the end."""
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
    """Return who we are, as the client wants to be told; unset ones are left to the URL."""
    nkey, creds = (given(arguments, environ, name) for name in ("nkey", "creds"))
    if creds:
        read_text("creds", creds)  # The client would take it for a server's fault.
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
    """Return what is in a file that an option names."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"`--{option}`: cannot read `{path}`: {reason}") from None

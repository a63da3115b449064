"""
The options of every command that connects, and the settings that follow from them.

Options override a context, or the environment. A context that is only selected applies when
nothing names a server: its password is for its own server.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.arguments import Argument, argument
from penstock.errors import ConfigError
from penstock.protocol.times import SECOND_NS
from penstock.protocol.units import read_duration

if TYPE_CHECKING:
    from argparse import Namespace

SERVER = "nats://127.0.0.1:4222"
TIMEOUT_NS = 5 * SECOND_NS
CONTEXT_VARIABLE = "NATS_CONTEXT"
ENVIRONMENT = {
    "server": "NATS_URL",
    "user": "NATS_USER",
    "password": "NATS_PASSWORD",
    "token": "NATS_TOKEN",
    "creds": "NATS_CREDS",
    "nkey": "NATS_NKEY",
    "tlsca": "NATS_CA",
    "tlscert": "NATS_CERT",
    "tlskey": "NATS_KEY",
}
"""The environment variables behind the options; the names are those of the `nats` command."""
IDENTITIES = (("user", "password"), ("token",), ("creds",), ("nkey",))
"""Four ways to log in. One that is named on the command line replaces another one."""


def _connection(*names: str, doc: str, **settings: Any) -> Argument:
    return argument(*names, doc=doc, section="Connection", default=None, **settings)


INBOX_PREFIX = _connection("--inbox-prefix", metavar="SUBJECT", doc="Prefix of reply subjects.")
SETTINGS = (
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
    _connection(
        "--tlsca",
        metavar="FILE",
        doc="Certificates to trust (default: NATS_CA, else those of the system).",
    ),
    _connection("--tlscert", metavar="FILE", doc="Our certificate (default: NATS_CERT)."),
    _connection("--tlskey", metavar="FILE", doc="Key of our certificate (default: NATS_KEY)."),
    _connection(
        "--tlsfirst", action="store_true", doc="Start TLS before the server says anything."
    ),
    _connection("--domain", metavar="NAME", doc="JetStream domain to use."),
    INBOX_PREFIX,
)
"""The options that a context may have in their place."""
TIMEOUT = argument(
    "--timeout",
    section="Connection",
    metavar="DURATION",
    type=read_duration,
    default=TIMEOUT_NS,
    doc="Time to wait for an answer (default: 5s).",
)
JSON = argument("-j", "--json", action="store_true", doc="Print JSON, for scripts.")
CONNECTION = (
    *SETTINGS,
    _connection(
        "--context",
        metavar="NAME",
        doc="Settings saved by `penstock context` (default: NATS_CONTEXT, else the selected one).",
    ),
    TIMEOUT,
    JSON,
)
"""Options of every verb that connects."""


def settings_of(
    arguments: Namespace, environ: Mapping[str, str], *, only_named: bool = False
) -> dict[str, Any]:
    """
    Return the settings in effect, by the name of their option.

    With `only_named`, another option has named the server already: only options count, and a
    context that an option names.
    """
    options = named_settings(arguments)
    context = _context(arguments, {} if only_named else environ, names_server="server" in options)
    if context:
        from penstock.cli.contexts.files import ContextFiles

        below = ContextFiles(environ).settings(context)
    else:
        variables = {} if only_named else environ
        below = {name: variables.get(text) for name, text in ENVIRONMENT.items()}
    for kind in IDENTITIES:
        if any(name in options for names in IDENTITIES if names != kind for name in names):
            below = {name: value for name, value in below.items() if name not in kind}
    return {name: value for name, value in (below | options).items() if value}


def named_settings(arguments: Namespace) -> dict[str, Any]:
    """Return the settings that the command line names."""
    names = [each.names[-1].removeprefix("--").replace("-", "_") for each in SETTINGS]
    return {name: getattr(arguments, name) for name in names if getattr(arguments, name, None)}


def client_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings as those of our client, without the servers."""
    found = {
        "user": settings.get("user"),
        "password": settings.get("password"),
        "token": settings.get("token"),
        "credentials": settings.get("creds"),
        "nkey_seed": _seed(settings),
        "tls_handshake_first": settings.get("tlsfirst"),
        "inbox_prefix": settings.get("inbox_prefix"),
    }
    if tls := check_files(settings):
        from penstock.client.options import tls_context

        found["tls"] = tls_context(*(tls.get(name) for name in ("tlsca", "tlscert", "tlskey")))
    return {name: value for name, value in found.items() if value is not None}


def bus_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings as those of a bus on NATS, without the servers."""
    tls = check_files(settings)
    found = {
        "user": settings.get("user"),
        "password": settings.get("password"),
        "token": settings.get("token"),
        "credentials": settings.get("creds"),
        "nkey_seed": _seed(settings),
        "tls_ca": tls.get("tlsca"),
        "tls_certificate": tls.get("tlscert"),
        "tls_key": tls.get("tlskey"),
        "tls_handshake_first": settings.get("tlsfirst"),
    }
    return {name: value for name, value in found.items() if value is not None}


def read_text(option: str, path: str) -> str:
    """Return the text of a file that an option names."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"`--{option}`: cannot read `{path}`: {reason}") from None


def check_files(settings: Mapping[str, Any]) -> dict[str, str]:
    """
    Return the files of TLS.

    Raise if one of them or the creds file cannot be read: the client would blame the server.
    """
    if creds := settings.get("creds"):
        read_text("creds", creds)
    tls = {name: settings[name] for name in ("tlsca", "tlscert", "tlskey") if settings.get(name)}
    for name, path in tls.items():
        read_text(name, path)
    if "tlskey" in tls and "tlscert" not in tls:
        raise ConfigError("`--tlskey` is the key of a certificate; hint: add --tlscert")
    return tls


def _context(arguments: Namespace, environ: Mapping[str, str], *, names_server: bool) -> str:
    """Return the context that applies; empty if there is none."""
    if arguments.context:
        return str(arguments.context)
    if names_server or not environ or environ.get(ENVIRONMENT["server"]):
        return ""
    from penstock.cli.contexts.files import ContextFiles

    return environ.get(CONTEXT_VARIABLE) or ContextFiles(environ).selected


def _seed(settings: Mapping[str, Any]) -> str | None:
    path = settings.get("nkey")
    return read_text("nkey", path).strip() if path else None

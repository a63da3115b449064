"""
Named contexts in files: where a server is, and who we are there.

They are the files of the `nats` command, in its directory and with its field names, so both
commands share their contexts. A file may hold a password, so only its owner can read it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.errors import ClientError, ConfigError, reason
from penstock.files import PRIVATE, replace_file
from penstock.protocol.suggestions import nearest

FIELDS = {
    "server": "url",
    "user": "user",
    "password": "password",
    "token": "token",
    "creds": "creds",
    "nkey": "nkey",
    "tlsca": "ca",
    "tlscert": "cert",
    "tlskey": "key",
    "tlsfirst": "tls_first",
    "domain": "jetstream_domain",
    "api_prefix": "jetstream_api_prefix",
    "inbox_prefix": "inbox_prefix",
}
"""The name of a setting here, and the field that a file has for it."""
PATHS = ("creds", "nkey", "tlsca", "tlscert", "tlskey")
FOREIGN = ("nsc", "socks_proxy", "user_jwt", "user_seed")
"""Fields that decide how to connect, and that we cannot follow."""
NAME = re.compile(r"[^/\\\x00-\x1f]+")


class ContextFiles:
    """The contexts of one user."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        parent = environ.get("XDG_CONFIG_HOME")
        self._home = (Path(parent) if parent else Path.home() / ".config") / "nats"
        self._folder = self._home / "context"
        self._selection = self._home / "context.txt"

    def names(self) -> list[str]:
        """Return the names of all contexts."""
        return sorted(path.stem for path in self._folder.glob("*.json"))

    @property
    def selected(self) -> str:
        """The context to use where none is named; empty if there is none."""
        try:
            return self._selection.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return ""
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read `{self._selection}`: {reason(error)}") from None

    def read(self, name: str) -> dict[str, Any]:
        """Return the fields of a context."""
        path = self.path(name)
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise self._unknown(name) from None
        except (OSError, ValueError) as error:
            raise ConfigError(f"context `{name}`: cannot read `{path}`: {reason(error)}") from None
        if not isinstance(found, dict):
            raise ConfigError(f"context `{name}`: `{path}` must contain a JSON object")
        return found

    def settings(self, name: str) -> dict[str, Any]:
        """Return what a context says about a connection, by the names of our settings."""
        fields = self.read(name)
        foreign = next((field for field in FOREIGN if fields.get(field)), None)
        if foreign is not None:
            raise ConfigError(
                f"context `{name}` has `{foreign}`, which only the `nats` command supports; "
                "hint: penstock context save OTHER --server URL --creds FILE"
            )
        found = {option: fields[field] for option, field in FIELDS.items() if fields.get(field)}
        return found | {
            option: str(Path(found[option]).expanduser()) for option in PATHS if option in found
        }

    def write(self, name: str, fields: Mapping[str, Any]) -> None:
        """Create or replace a context."""
        text = json.dumps(fields, indent=2, ensure_ascii=False) + "\n"
        self._write(self.path(name), text)

    def select(self, name: str) -> None:
        """Use a context where none is named; an empty name ends that."""
        if name:
            self.read(name)
            self._write(self._selection, name)
        else:
            self._selection.unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        """Delete a context."""
        self.read(name)
        if name == self.selected:
            self.select("")
        self.path(name).unlink()

    def path(self, name: str) -> Path:
        """Return the file of a context."""
        if not NAME.fullmatch(name) or name.startswith(".") or ".." in name:
            raise ConfigError(f"`{name}` is not a valid name of a context; hint: such as `prod`")
        return self._folder / f"{name}.json"

    def _write(self, path: Path, text: str) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(path, text, mode=PRIVATE)
        except OSError as error:
            raise ClientError(f"cannot write `{path}`: {reason(error)}") from None

    def _unknown(self, name: str) -> ConfigError:
        meant = nearest(name, self.names())
        hint = f"did you mean `{meant}`?" if meant else f"penstock context save {name} --server URL"
        return ConfigError(f"there is no context `{name}`; hint: {hint}")

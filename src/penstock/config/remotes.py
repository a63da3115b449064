"""
Other servers that streams are copied from: where they are, and who we are there.

A stream names one by the API prefix of its origin, `$JS.<name>.API`, which is what
clients send when they are asked for a stream of another JetStream domain.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.config.accounts import GLOBAL
from penstock.config.setting import setting
from penstock.errors import ConfigError

IDENTITIES = ("user", "token", "nkey", "credentials")


@dataclass(frozen=True, kw_only=True)
class RemoteTls:
    """How to speak TLS with a remote: whom to trust, and who we are if it asks."""

    ca_file: str | None = setting(None, "Authorities to trust; those of the system if unset.")
    cert_file: str | None = setting(None, "Certificate to show, if the remote asks for one.")
    key_file: str | None = setting(None, "Private key of the certificate.")
    handshake_first: bool = setting(False, "Start TLS before the remote's INFO.")

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.key_file is None):
            raise ConfigError("`jetstream.remotes`: `cert_file` and `key_file` go together")


@dataclass(frozen=True, kw_only=True)
class RemoteConfig:
    """One other server, or cluster of them, with JetStream."""

    name: str = setting("", "What streams call it: `$JS.<name>.API`.")
    urls: tuple[str, ...] = setting((), "Where it is.", secret=True)
    account: str = setting(GLOBAL, "Account here whose streams may copy from it.")
    domain: str = setting("", "JetStream domain to ask there; that of the server if unset.")
    user: str | None = setting(None, "User name.")
    password: str | None = setting(None, "Password of the user.", secret=True)
    token: str | None = setting(None, "Authentication token.", secret=True)
    nkey: str | None = setting(None, "Path of a file with the seed of an nkey user.")
    credentials: str | None = setting(None, "Path of a creds file.")
    tls: RemoteTls | None = None

    def __post_init__(self) -> None:
        if not self.name or any(each in ".*> \t" for each in self.name) or self.name == "API":
            raise ConfigError(
                f'`jetstream.remotes`: "{self.name}" is no name for a remote: it is one token of '
                "the subject `$JS.<name>.API`"
            )
        if not self.urls:
            raise self._error("has no `urls`; hint: [nats://host:4222]")
        given = [name for name in IDENTITIES if getattr(self, name) is not None]
        if len(given) > 1:
            raise self._error(f"has more than one of {', '.join(f'`{each}`' for each in given)}")
        if self.password is not None and self.user is None:
            raise self._error("has a `password` without a `user`")

    def _error(self, problem: str) -> ConfigError:
        return ConfigError(f'`jetstream.remotes`: "{self.name}" {problem}')

    @property
    def api(self) -> str:
        """What the subjects of its API begin with, as streams here say it."""
        return f"$JS.{self.name}.API"

    @property
    def api_there(self) -> str:
        """What they begin with on the remote itself."""
        return f"$JS.{self.domain}.API" if self.domain else "$JS.API"


def check_remotes(remotes: tuple[RemoteConfig, ...], domain: str | None) -> None:
    """Refuse two remotes of one name, and one with the name of our own domain."""
    names = [remote.name for remote in remotes]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f'`jetstream.remotes` has more than one "{name}"')
        if name == domain:
            raise ConfigError(
                f'`jetstream.remotes` has "{name}", which is the `jetstream.domain` of this server'
            )

"""
Other servers that streams are copied from: their addresses, and our identity there.

A stream names a remote by the API prefix of its origin, `$JS.<name>.API`. Clients send the
same prefix for a stream of another JetStream domain.
"""

from __future__ import annotations

from penstock.config.accounts import GLOBAL
from penstock.config.frozen import dataclass
from penstock.config.setting import setting
from penstock.errors import ConfigError
from penstock.protocol import wellknown

IDENTITIES = ("user", "token", "nkey", "credentials")


@dataclass(frozen=True, kw_only=True)
class RemoteTls:
    """TLS settings of a remote: the authorities we trust, and our own certificate."""

    ca_file: str | None = setting(None, "Trusted authorities (default: those of the system).")
    cert_file: str | None = setting(None, "Client certificate, if the remote asks for one.")
    key_file: str | None = setting(None, "Private key of the certificate.")
    handshake_first: bool = setting(False, "Start TLS before the remote's INFO.")

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.key_file is None):
            raise ConfigError("`jetstream.remotes`: `cert_file` and `key_file` need each other")


@dataclass(frozen=True, kw_only=True)
class RemoteConfig:
    """One other server or cluster with JetStream."""

    name: str = setting("", "Name in the API prefix of streams, `$JS.<name>.API`.")
    urls: tuple[str, ...] = setting((), "Servers to connect to.", secret=True)
    account: str = setting(GLOBAL, "Local account whose streams may copy from it.")
    domain: str = setting("", "JetStream domain on the remote (default: that of the server).")
    user: str | None = setting(None, "User name.")
    password: str | None = setting(None, "Password of the user.", secret=True)
    token: str | None = setting(None, "Authentication token.", secret=True)
    nkey: str | None = setting(None, "Path of a file with the seed of an nkey user.")
    credentials: str | None = setting(None, "Path of a creds file.")
    tls: RemoteTls | None = None

    def __post_init__(self) -> None:
        if not self.name or any(each in ".*> \t" for each in self.name) or self.name == "API":
            raise ConfigError(
                f'`jetstream.remotes`: "{self.name}" is not a valid remote name: '
                "it must be one token of the subject `$JS.<name>.API`"
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
        """The API prefix of the remote, as streams here use it."""
        return wellknown.api_of(self.name)

    @property
    def api_there(self) -> str:
        """The API prefix on the remote itself."""
        return wellknown.api_of(self.domain)


def check_remotes(remotes: tuple[RemoteConfig, ...], domain: str | None) -> None:
    """Refuse two remotes with the same name, and a name equal to our own domain."""
    names = [remote.name for remote in remotes]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f'`jetstream.remotes` has more than one "{name}"')
        if name == domain:
            raise ConfigError(
                f'`jetstream.remotes` has "{name}", which is the `jetstream.domain` of this server'
            )

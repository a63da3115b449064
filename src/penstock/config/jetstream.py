"""The settings of JetStream: where streams are stored, how safely, and how they are encrypted."""

from __future__ import annotations

from dataclasses import MISSING
from typing import Literal

from penstock.config.frozen import dataclass
from penstock.config.remotes import RemoteConfig, check_remotes
from penstock.config.setting import check_bounds, setting
from penstock.errors import ConfigError
from penstock.keys import nkeys


@dataclass(frozen=True, kw_only=True)
class JetStreamConfig:
    """Where streams are stored, and how safely."""

    store_dir: str = setting(
        MISSING,
        "Directory of the streams (default: `$XDG_DATA_HOME/penstock/jetstream`).",
        directive="jetstream.store_dir",
        aliases=("jetstream.storedir", "jetstream.store", "store_dir", "storedir"),
        flags=("sd", "store_dir"),
    )
    max_mem: int | None = setting(
        None,
        "Maximum bytes of all memory streams (default: no limit).",
        directive="jetstream.max_mem",
        aliases=("jetstream.max_memory_store", "jetstream.max_mem_store"),
        size=True,
    )
    max_file: int | None = setting(
        None,
        "Maximum bytes of all file streams (default: no limit).",
        directive="jetstream.max_file",
        aliases=("jetstream.max_file_store",),
        size=True,
    )
    sync_interval: float | Literal["always"] = setting(
        "always",
        "`always` acks a message once it would survive a power cut; a duration syncs "
        "at that interval instead, as nats-server does.",
        directive="jetstream.sync_interval",
        aliases=("jetstream.sync",),
    )
    key: str | None = setting(
        None,
        "Encrypt all that JetStream stores with this key; a store that is not encrypted yet is "
        "encrypted at the start. Needs the extra `security`.",
        directive="jetstream.key",
        aliases=("jetstream.ek", "jetstream.encryption_key"),
        secret=True,
    )
    cipher: Literal["chacha", "aes"] = setting(
        "chacha",
        "Cipher for what is written from now on: `chacha` (ChaCha20-Poly1305) or `aes` "
        "(AES-256-GCM).",
        directive="jetstream.cipher",
    )
    prev_key: str | None = setting(
        None,
        "The `key` until now, if it is to change: the start replaces it, and rewrites one file.",
        directive="jetstream.prev_key",
        aliases=("jetstream.prev_ek", "jetstream.prev_encryption_key"),
        secret=True,
    )
    domain: str | None = setting(None, "JetStream domain.", directive="jetstream.domain")
    remotes: tuple[RemoteConfig, ...] = setting(
        (),
        "Other servers that streams may mirror and source from, as `external` with the API prefix "
        "`$JS.<name>.API`: each has `name` and `urls`; optional: `account`, `domain`, one of "
        "`user` and `password`, `token`, `nkey` or `credentials`, and `tls`. nats-server has leaf "
        "nodes instead.",
        directive="jetstream.remotes",
    )
    max_index: int = setting(
        64 * 1024 * 1024,
        "Memory for the index of complete segments, per stream; what does not fit is read "
        "from disk again.",
        directive="jetstream.max_index",
        positive=True,
        size=True,
    )

    def __post_init__(self) -> None:
        if not self.store_dir:
            raise ConfigError("`jetstream.store_dir` is empty: name a directory")
        if self.sync_interval != "always" and self.sync_interval <= 0:
            raise ConfigError("`jetstream.sync_interval` must be `always` or more than 0")
        if self.cipher not in ("chacha", "aes"):
            raise ConfigError(f"`jetstream.cipher` must be `chacha` or `aes`, not {self.cipher!r}")
        if self.key:
            nkeys.require_cryptography("`jetstream.key`")
        check_remotes(self.remotes, self.domain)
        check_bounds(self)

"""The examination of this machine: packages, limits, the configuration and the disk of a server."""

from __future__ import annotations

import os
import platform
import resource
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from penstock import hot
from penstock.cli.doctor.findings import BAD, OK, WARNING, Finding
from penstock.cli.values import show_count, show_size
from penstock.config.file.loading import ServerOptions, load
from penstock.errors import ConfigError
from penstock.protocol.version import NATS_VERSION, VERSION

FILES_MIN = 8192
FREE_SHARE_MIN = 0.1
EXTRAS = {"cramjam": "s2", "cryptography": "security"}
"""Packages that a server and a client use if they are here, and the extras that have them."""


def examine(config: str | None) -> Iterator[Finding]:
    """Look at this machine, and at the configuration of a server if one is named."""
    yield Finding(
        OK,
        "versions",
        f"Penstock {VERSION} (NATS {NATS_VERSION}), Python {platform.python_version()}",
    )
    yield _hot_path()
    for package, extra in EXTRAS.items():
        if find_spec(package) is None:
            yield Finding(
                WARNING, "packages", f"`{package}` is missing", f"pip install 'penstock[{extra}]'"
            )
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = soft < FILES_MIN
    text = f"{show_count(soft)} open files"
    yield Finding(WARNING if few else OK, "limits", text, f"ulimit -n {FILES_MIN}" if few else "")
    if config is not None:
        yield from _configuration(config)


def _hot_path() -> Finding:
    if hot.COMPILED:
        return Finding(OK, "hot path", "compiled")
    remedy = "install a wheel, or a C compiler before Penstock"
    return Finding(WARNING, "hot path", "pure Python: correct, but several times slower", remedy)


def _configuration(path: str) -> Iterator[Finding]:
    """Look for mistakes, and for settings without effect."""
    try:
        options = load(path, os.environ, ())
    except ConfigError as error:
        for line in str(error).splitlines():
            yield Finding(BAD, "configuration", line)
        return
    for warning in options.warnings:
        yield Finding(WARNING, "configuration", str(warning))
    if not options.warnings:
        yield Finding(OK, "configuration", f"`{path}`: every setting has an effect")
    yield from _disk(options)


def _disk(options: ServerOptions) -> Iterator[Finding]:
    jetstream = options.server.jetstream
    if jetstream is None:
        return
    folder = Path(jetstream.store_dir)
    while not folder.exists():
        folder = folder.parent
    usage = shutil.disk_usage(folder)
    text = f"{show_size(usage.free)} of {show_size(usage.total)} free at `{jetstream.store_dir}`"
    short = usage.free < usage.total * FREE_SHARE_MIN
    yield Finding(
        BAD if short else OK, "disk", text, "purge streams, or give them limits" if short else ""
    )

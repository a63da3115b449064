"""The settings in effect, as `penstock config explain` prints them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.config.server import ProcessConfig

if TYPE_CHECKING:
    from penstock.net.monitor.watched import Watched


def explain(server: Watched) -> dict[str, Any]:
    """Return every setting with its value and where that came from. Secrets are hidden."""
    # Imported when somebody asks: it brings the reader of configuration files.
    from penstock.config.file.explaining import settings
    from penstock.config.file.loading import ServerOptions

    options = server.options or ServerOptions(server=server.config, process=ProcessConfig())
    rows = [[each.directive, each.value, each.source] for each in settings(options)]
    return {"settings": rows, "warnings": list(options.warnings)}

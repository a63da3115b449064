"""
Links that leave the documentation lead to the repository on the site.

On a page they are relative, so that they work in a checkout and where the repository is shown.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Any

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(?<=\]\()(\.\./[^)#\s]*)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Rewrite the links of one page."""
    folder = PurePosixPath("docs", page.file.src_uri).parent

    def rewrite(match: re.Match[str]) -> str:
        path = normpath(str(folder / match[1]))
        if path.startswith("docs/") or not (ROOT / path).exists():
            return match[1]  # A page of the site, or a broken link, which the site reports.
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"{config.repo_url}/{kind}/main/{path}"

    return LINK.sub(rewrite, markdown)

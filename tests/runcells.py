"""
Run cells of Python one after another, as a notebook does: `await` needs no function.

Called as a program with a JSON file, a list of sources. A cell that fails is shown.
"""

from __future__ import annotations

import ast
import asyncio
import json
import sys
from inspect import CO_COROUTINE
from pathlib import Path
from typing import Any


def run(cells: list[str]) -> None:
    """Run every cell in one namespace."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    sys.modules["__main__"].__dict__.update(namespace)
    names = sys.modules["__main__"].__dict__
    with asyncio.Runner() as runner:
        for number, cell in enumerate(cells):
            code = compile(cell, f"<cell {number}>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            if code.co_flags & CO_COROUTINE:
                runner.run(eval(code, names))
            else:
                exec(code, names)


if __name__ == "__main__":
    run(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))

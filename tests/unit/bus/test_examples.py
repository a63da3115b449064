"""The examples do what they say."""

from __future__ import annotations

import asyncio
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_order_service_keeps_each_customers_order() -> None:
    main = runpy.run_path(str(ROOT / "examples" / "order_service.py"))["main"]

    story = asyncio.run(main())

    assert ["ann placed 0", "ann placed 2", "ann placed 4"] == [
        line for line in story if line.startswith("ann placed")
    ]
    assert ["bob placed 1", "bob placed 5"] == [line for line in story if line.startswith("bob")]
    assert "dead: ValueError: order 3 has a negative amount" in story
    assert "ann spent 90" == story[-1]


def test_the_example_of_the_guide_runs() -> None:
    text = (ROOT / "docs" / "guides" / "eventbus.md").read_text(encoding="utf-8")
    code = text.split("```python\n")[1].split("```")[0]

    exec(compile(code, "eventbus.md", "exec"), {"__name__": "__main__"})

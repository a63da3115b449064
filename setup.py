"""Only the one optional C extension; everything else is in pyproject.toml."""

from pathlib import Path

from setuptools import Extension, setup

# The limited API gives one wheel per platform for every Python from 3.11 on.
SPEEDUPS = Extension(
    "penstock._speedups",
    ["src/penstock/_speedups.c"],
    depends=[str(path) for path in Path("src/penstock").glob("*.h")],
    define_macros=[("Py_LIMITED_API", "0x030B0000")],
    py_limited_api=True,
    extra_compile_args=["-O3"],
    optional=True,
)

setup(ext_modules=[SPEEDUPS], options={"bdist_wheel": {"py_limited_api": "cp311"}})

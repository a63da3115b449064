"""The one optional C extension, and the readme; everything else is in pyproject.toml."""

import re
import tomllib
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

COMPILE_HARDENED = ("-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2", "-fstack-protector-strong")
LINK_HARDENED = ("-Wl,-z,relro,-z,now", "-Wl,-z,noexecstack")


class BuildHardened(build_ext):
    """Builds with what makes a mistake in C harder to exploit, as far as the compiler takes it."""

    def build_extension(self, extension: Extension) -> None:
        extension.extra_compile_args += [flag for flag in COMPILE_HARDENED if self._takes([flag])]
        extension.extra_link_args += [flag for flag in LINK_HARDENED if self._takes([], [flag])]
        super().build_extension(extension)

    def _takes(self, compile_flags: list[str], link_flags: list[str] | None = None) -> bool:
        """Tell whether a program of one line can be built with these flags."""
        directory = Path(self.build_temp, "probe")
        directory.mkdir(parents=True, exist_ok=True)
        source = directory / "probe.c"
        source.write_text("int probe(void) { return 0; }\n")
        try:
            objects = self.compiler.compile(
                [str(source)],
                output_dir=str(directory),
                # A flag that is only ignored with a warning does nothing, so it is left out.
                extra_postargs=["-O2", "-Werror", *compile_flags],
            )
            if link_flags is not None:
                self.compiler.link_shared_object(
                    objects, str(directory / "probe.so"), extra_postargs=link_flags
                )
        except Exception:
            return False
        return True


NATIVE = Path("src/penstock/hot/native")

# The limited API gives one wheel per platform for every Python from 3.11 on.
SPEEDUPS = Extension(
    "penstock.hot._speedups",
    [str(path) for path in sorted(NATIVE.glob("*.c"))],
    depends=[str(NATIVE / "twins.h")],
    define_macros=[("Py_LIMITED_API", "0x030B0000")],
    py_limited_api=True,
    extra_compile_args=["-O3", "-fvisibility=hidden"],
    optional=True,
)

SOURCE = tomllib.loads(Path("pyproject.toml").read_text())["project"]["urls"]["Source"]


def readme() -> str:
    """Return the readme with links that lead to the repository from anywhere."""
    text = Path("README.md").read_text(encoding="utf-8")
    text = re.sub(r"\]\((?!https?:|#)", f"]({SOURCE}/blob/main/", text)
    return re.sub(r'src="(?!https?:)', f'src="{SOURCE}/raw/main/', text)


setup(
    long_description=readme(),
    long_description_content_type="text/markdown",
    ext_modules=[SPEEDUPS],
    cmdclass={"build_ext": BuildHardened},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)

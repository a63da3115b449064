"""Where environments installed before the plugin moved still look for it; goes with them."""

from importlib import import_module

_plugin = vars(import_module("penstock.pytest_plugin"))
globals().update({name: value for name, value in _plugin.items() if not name.startswith("_")})

"""
Testing what uses the bus: real servers, faults on demand, time that does not pass.

The pytest plugin is `penstock.pytest_plugin`; what its fixtures give can be
used without pytest too.
"""

from penstock.bus.testing.proxy import Fault, FaultProxy
from penstock.bus.testing.server import PenstockServer
from penstock.bus.testing.virtualtime import VirtualTime

__all__ = ["Fault", "FaultProxy", "PenstockServer", "VirtualTime"]

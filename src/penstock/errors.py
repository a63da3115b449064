"""
Every error Penstock raises on purpose. The class says whose fault it is.

PenstockError
├── ProtocolError      the peer broke the wire protocol: `-ERR`, then close
├── PermissionDenied   the peer may not do that: `-ERR`, the connection stays
├── ConfigError        the operator's settings do not make sense
├── StoreError         the disk failed us, or what is on it cannot be trusted
├── JetStreamError     a JetStream API request failed: carries the wire codes
└── ClientError        our own client could not do what it was asked
"""

from __future__ import annotations


class PenstockError(Exception):
    """The root of all of them."""


class ProtocolError(PenstockError):
    """The peer broke the wire protocol."""


class PermissionDenied(PenstockError):
    """The peer may not do what it asked for."""


class ConfigError(PenstockError):
    """A setting is unknown or does not make sense; the text names it and the remedy."""


class StoreError(PenstockError):
    """Stored data could not be written, or could not be trusted when read."""


class ClientError(PenstockError):
    """The client could not do what it was asked."""

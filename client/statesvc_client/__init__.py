"""statesvc_client: the light half that runs inside an agent. Depends on msgspec alone, never on the daemon."""

from ._version import __version__

__all__ = ["__version__"]

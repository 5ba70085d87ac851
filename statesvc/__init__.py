"""statesvc: the daemon that remembers what a job agent did."""

from statesvc_client import __version__

__all__ = ["__version__"]

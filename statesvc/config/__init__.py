"""The configuration: `model` says what there is, `sources` where it comes from, `identities` who is meant."""

from statesvc.config.model import KNOWN_BACKENDS, Access, Limits, Secret, Settings, Sqlite
from statesvc.config.problems import BadConfiguration
from statesvc.config.sources import Loaded, load

__all__ = [
    "KNOWN_BACKENDS",
    "Access",
    "BadConfiguration",
    "Limits",
    "Loaded",
    "Secret",
    "Settings",
    "Sqlite",
    "load",
]

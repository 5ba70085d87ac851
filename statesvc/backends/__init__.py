"""Engines, by name. Each loads only when it is chosen: no driver of another engine is ever imported."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..config import Settings
    from .port import Engine

REGISTRY = {
    "memory": "statesvc.backends.memory:from_settings",
    "sqlite": "statesvc.backends.sqlite:from_settings",
    "redis": "statesvc.backends.redis:from_settings",
    "dynamodb": "statesvc.backends.dynamodb:from_settings",
}


def make(settings: Settings) -> Engine:
    """The engine the configuration asks for."""
    module, _, name = REGISTRY[settings.backend].partition(":")
    factory: Callable[[Settings], Engine] = getattr(import_module(module), name)
    return factory(settings)

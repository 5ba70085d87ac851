"""The engine on DynamoDB: Joblet's table, and a companion for the log and all other kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .engine import DynamodbEngine

if TYPE_CHECKING:
    from ...config import Settings


def from_settings(settings: Settings) -> DynamodbEngine:
    return DynamodbEngine(settings.storage.dynamodb)

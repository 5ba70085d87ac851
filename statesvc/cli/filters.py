"""The options that narrow a set of records, and the filter they add up to. Must not know who asks for the records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from statesvc.cli import fields

_MOMENTS = ("created", "updated", "started", "completed")

_status_option = click.option("--status", multiple=True, help="Only this status; give it again for more than one.")

_OTHER_OPTIONS = (
    click.option("--node", help="Only this nodeId."),
    click.option("--owner", help="Only what this record owns, as kind/id."),
    click.option("--id", "ids", multiple=True, help="Only this id; give it again for more than one."),
    click.option("--prefix", help="Only ids that begin so."),
    click.option("--regex", help="Only ids in which this pattern (RE2 syntax) is found."),
    click.option("--label", multiple=True, metavar="NAME=TEXT", help="Only records with this label."),
    click.option("--where", multiple=True, metavar="PATH=VALUE", help="Only records with this value at this path."),
    *(
        click.option(f"--{moment}-{side}", metavar="TIME", help=f"Only records {moment} {side} this time (RFC 3339).")
        for moment in _MOMENTS
        for side in ("after", "before")
    ),
)


def filter_options(command: Callable[..., None]) -> Callable[..., None]:
    """Everything a filter can ask for."""
    return _status_option(filter_options_but_status(command))


def filter_options_but_status(command: Callable[..., None]) -> Callable[..., None]:
    """For a command whose --status means something else."""
    for option in reversed(_OTHER_OPTIONS):
        command = option(command)
    return command


def filter_of(asked: dict[str, Any]) -> dict[str, Any] | None:
    """The filter that the options among `asked` add up to; None when they ask for nothing."""
    wanted = {
        "statuses": list(asked.get("status", ())),
        "nodeId": asked["node"],
        "owner": asked["owner"],
        "ids": list(asked["ids"]),
        "prefix": asked["prefix"],
        "regex": asked["regex"],
        "labels": fields.pairs(asked["label"], str, "--label"),
        "where": fields.pairs(asked["where"], option="--where"),
    }
    for moment in _MOMENTS:
        wanted[f"{moment}After"] = asked[f"{moment}_after"]
        wanted[f"{moment}Before"] = asked[f"{moment}_before"]
    return {name: value for name, value in wanted.items() if value not in (None, [], {})} or None

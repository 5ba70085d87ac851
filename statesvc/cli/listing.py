"""`statesvc list`: options to a filter, cursors to pages. Must not know how records are found or printed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import click

from statesvc.cli import fields
from statesvc.cli.options import Talk, kind_option, talks
from statesvc.cli.output import show_pages
from statesvc.cli.session import Session

SORT_KEYS = ("createdAt", "updatedAt", "startedAt", "completedAt", "scheduledAt", "priority", "status", "id")
_MOMENTS = ("created", "updated", "started", "completed")
_PAGE = 1000


def _moment_options(command: Callable[..., None]) -> Callable[..., None]:
    """--created-after, --created-before and so on."""
    for moment in reversed(_MOMENTS):
        for side in ("before", "after"):
            words = f"Only records {moment} {side} this time (RFC 3339)."
            command = click.option(f"--{moment}-{side}", metavar="TIME", help=words)(command)
    return command


@click.command("list")
@click.option("--status", multiple=True, help="Only this status; give it again for more than one.")
@click.option("--node", help="Only this nodeId.")
@click.option("--owner", help="Only what this record owns, as kind/id.")
@click.option("--id", "ids", multiple=True, help="Only this id; give it again for more than one.")
@click.option("--prefix", help="Only ids that begin so.")
@click.option("--regex", help="Only ids in which this pattern (RE2 syntax) is found.")
@click.option("--label", multiple=True, metavar="NAME=TEXT", help="Only records with this label.")
@click.option("--where", multiple=True, metavar="PATH=VALUE", help="Only records with this value at this path.")
@_moment_options
@click.option("--sort-by", type=click.Choice(SORT_KEYS), help="The order; createdAt when not given.")
@click.option("--desc/--asc", "descending", default=None, help="Highest first, or lowest first.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most so many records.")
@click.option("--cursor", help="Go on where an earlier list ended.")
@click.option("--all", "everything", is_flag=True, help="Follow the cursors to the end.")
@click.option("--count", is_flag=True, help="Print only how many records there are.")
@click.option("--show-secrets", is_flag=True, help="With json or jsonl, print secretEnvironment too.")
@kind_option
@talks
def list_command(talk: Talk, *, count: bool, show_secrets: bool, **asked: Any) -> None:
    """Print records, newest first.

    One page is printed (100 records unless --limit says otherwise); when there are more, a line on stderr
    says how to go on. With --all the pages follow each other, up to --limit records if that is given.
    """
    request = {
        "kind": talk.kind,
        "filter": _filter(asked) or None,
        "sortBy": asked["sort_by"],
        "sortDesc": asked["descending"],
        "cursor": asked["cursor"],
    }
    with talk.open() as session:
        if count:
            click.echo(session.ask("list", count=True, limit=1, kind=talk.kind, filter=request["filter"])["total"])
            return
        pages = _pages(session, request, asked["limit"], asked["everything"])
        show_pages((page.get(talk.records, []) for page in pages), talk.format, show_secrets)


def _pages(session: Session, request: dict[str, Any], limit: int | None, everything: bool) -> Iterator[dict[str, Any]]:
    left = limit
    while True:
        most = _PAGE if everything else left
        reply = session.ask("list", limit=most if left is None or most is None else min(left, most), **request)
        yield reply
        request["cursor"] = reply.get("nextCursor")
        left = None if left is None else left - len(reply.get("jobs", reply.get("records", [])))
        if not request["cursor"] or left == 0 or not everything:
            break
    if request["cursor"]:
        click.echo(f"there is more: --cursor {request['cursor']} goes on, --all prints everything", err=True)


def _filter(asked: dict[str, Any]) -> dict[str, Any]:
    wanted = {
        "statuses": list(asked["status"]),
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
    return {name: value for name, value in wanted.items() if value not in (None, [], {})}

"""`statesvc list`: options to a filter, cursors to pages. Must not know how records are found or printed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from statesvc.cli.filters import filter_of, filter_options
from statesvc.cli.options import Talk, kind_option, talks
from statesvc.cli.output import LOCK_COLUMNS, RECORD_COLUMNS, show_pages
from statesvc.cli.session import Session

SORT_KEYS = ("createdAt", "updatedAt", "startedAt", "completedAt", "scheduledAt", "priority", "status", "id")
_PAGE = 1000


@click.command("list")
@filter_options
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
        "filter": filter_of(asked),
        "sortBy": asked["sort_by"],
        "sortDesc": asked["descending"],
        "cursor": asked["cursor"],
    }
    with talk.open() as session:
        if count:
            click.echo(session.ask("list", count=True, limit=1, kind=talk.kind, filter=request["filter"])["total"])
            return
        pages = _pages(session, request, asked["limit"], asked["everything"])
        columns = LOCK_COLUMNS if talk.kind == "lock" else RECORD_COLUMNS
        show_pages((page.get(talk.records, []) for page in pages), talk.format, show_secrets, columns)


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

"""`statesvc watch` and `statesvc history`: what happens and what has happened. Must not know how events are kept."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import click

from statesvc.cli.filters import filter_of, filter_options
from statesvc.cli.options import Talk, kind_option, talks
from statesvc.cli.output import show_event
from statesvc.cli.session import Session, refusal
from statesvc_client.errors import Busy, Gone, StateError, Unavailable

# How long to wait before the daemon is tried again: twice as long each time, up to the second.
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 2.0

_PAGE = 1000


@click.command("watch")
@filter_options
@click.option("--after", metavar="CURSOR", help="Begin behind this event, with 0 at the oldest kept; now if not given.")
@click.option("--count", type=click.IntRange(1), metavar="N", help="End after so many events.")
@kind_option
@talks
def watch_command(talk: Talk, *, after: str | None, count: int | None, **asked: Any) -> None:
    """Print events as they happen, a line each, until interrupted.

    When the daemon restarts, the watch goes on behind the last event printed. It ends with exit code 3 when events
    behind that one are no longer kept: list the records again, then watch. With json, too, an event is one line; its
    cursor is what --after takes.
    """
    watch = _Watch(talk, {"kind": talk.kind, "filter": filter_of(asked)}, after)
    try:
        for event in islice(watch.events(), count):
            show_event(event, talk.format)
    except KeyboardInterrupt:
        if talk.format == "table" and watch.cursor:
            click.echo(f"--after {watch.cursor} goes on from here", err=True)
    except BrokenPipeError:
        _forget_stdout()


def _forget_stdout() -> None:
    """Whoever read our output has had enough. Python would complain when it flushes at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Watch:
    """Events one after the other, over as many connections as it takes."""

    def __init__(self, talk: Talk, request: dict[str, Any], after: str | None) -> None:
        self._talk = talk
        self._request = request
        self.cursor = after

    def events(self) -> Iterator[dict[str, Any]]:
        # A daemon that was never there is an error; one that goes away is waited for.
        session = self._begun()
        while True:
            try:
                with session:
                    yield from self._heard(session)
            except (Busy, Unavailable) as why:
                session = self._resumed(why)

    def _begun(self) -> Session:
        session = self._talk.open()
        try:
            self.cursor = session.ask("watch", after=self.cursor, **self._request).get("cursor", self.cursor)
        except BaseException as failure:
            session.close()
            if isinstance(failure, Gone):
                raise Gone(f"{failure.text} (list the records again, then watch)") from None
            raise
        return session

    def _heard(self, session: Session) -> Iterator[dict[str, Any]]:
        for line in session.follow():
            event = line.get("event")
            if isinstance(event, dict):
                yield event
                self.cursor = event.get("cursor", self.cursor)
            elif line.get("success") is False:
                raise refusal(line)

    def _resumed(self, why: StateError) -> Session:
        click.echo(f"{why.code}: {why.text}; the watch will go on", err=True)
        pause = _FIRST_PAUSE_SECONDS
        while True:
            time.sleep(pause)
            try:
                return self._begun()
            except (Busy, Unavailable):
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


@click.command("history")
@click.argument("id_", metavar="ID")
@click.option("--after", metavar="CURSOR", help="Only what happened behind this event.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most so many events.")
@click.option("--all", "everything", is_flag=True, help="Follow the cursors to the end.")
@kind_option
@talks
def history_command(talk: Talk, *, id_: str, after: str | None, limit: int | None, everything: bool) -> None:
    """Print what happened to a record, oldest first.

    As far as it is kept. One page is printed; when there is more, a line on stderr says how to go on. With json,
    too, an event is one line.
    """
    left = limit
    with talk.open() as session:
        while True:
            most = min(left or _PAGE, _PAGE) if everything else left
            reply = session.ask("history", kind=talk.kind, after=after, limit=most, **{talk.id: id_})
            events = reply.get("events", [])
            for event in events:
                show_event(event, talk.format)
            after, left = reply.get("nextCursor"), None if left is None else left - len(events)
            if not after or left == 0 or not everything:
                break
    if after:
        click.echo(f"there is more: --after {after} goes on, --all prints everything", err=True)

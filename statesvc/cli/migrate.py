"""`statesvc migrate`: a store moved to another engine. Must not know how, nor what an address means."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import click

from statesvc.cli import ends
from statesvc.cli.options import output_option
from statesvc.cli.output import chosen_format, show_table, show_value
from statesvc.cli.paths import A_PATH
from statesvc.cli.progress import Meter

if TYPE_CHECKING:
    from statesvc.moving.migration import Migration, Report, Tell
    from statesvc.moving.sources import Source
    from statesvc.moving.target import Target

INTERRUPTED = 130
_UNITS = {"following": "entries"}


@click.command("migrate")
@click.option(
    "--from", "from_", required=True, metavar="A", help="The store to move: a configuration file or an address."
)
@click.option("--to", required=True, metavar="B", help="Where it goes, named the same way.")
@click.option(
    "--cut-over", is_flag=True, help="Freeze the source, move the rest, verify, and open the target for writes."
)
@click.option("--replace", is_flag=True, help="Remove whatever else the target holds first.")
@click.option(
    "--thaw-source",
    is_flag=True,
    help="Let the source take writes again: alone, to take a cut-over back; with --cut-over, when that has ended.",
)
@click.option(
    "--socket",
    type=A_PATH,
    help="The source's daemon, unless its configuration names it; only needed while one has a sqlite folder open.",
)
@output_option
@click.pass_context
def migrate_command(
    ctx: click.Context,
    from_: str,
    to: str,
    cut_over: bool,
    replace: bool,
    thaw_source: bool,
    socket: Path | None,
    output: str | None,
) -> None:
    """Move everything to another engine, while the source serves.

    A and B are configuration files, or addresses: sqlite:PATH, redis://HOST:PORT?namespace=NAME (rediss:// for TLS,
    redis+unix:///PATH for a Unix socket), dynamodb://TABLE?region=NAME&endpoint=URL. A may also be unix:SOCKET, a
    running daemon with whatever engine. Of a configuration file's environment only the password counts.

    Without --cut-over it copies, catches up with what was written meanwhile, compares, and ends; the source serves on,
    the target is frozen. Done again it goes on from there, also after it was killed. With --cut-over the source is
    frozen and stays so, the target is brought to the same state, read back, compared by count and digest, and thawed.

    Exits 0 when it is done, 4 when the target holds something else, 5 when an engine or daemon cannot be reached, 65
    when source and target differ in the end, 75 when a daemon has the target's folder, 130 when it was interrupted.
    """
    format = chosen_format(output)
    move = _Move(ends.read(from_), ends.read(to), socket, quiet=format != "table" and output is not None)
    if thaw_source and not cut_over:
        asyncio.run(move.thaw_source())
        _show({"source": move.source_end.shown, "sourceFrozen": False}, format)
        return
    try:
        report = asyncio.run(move.run(cut_over=cut_over, replace=replace, thaw_source=thaw_source))
    except (KeyboardInterrupt, asyncio.CancelledError):
        click.echo("statesvc: interrupted; the same command goes on from here", err=True)
        _say_frozen(move)
        ctx.exit(INTERRUPTED)
    except BaseException:
        _say_frozen(move)
        raise
    _show_report(report, move, format)


class _Move:
    """One run, from addresses to a report."""

    def __init__(self, source_end: ends.End, target_end: ends.End, socket: Path | None, *, quiet: bool) -> None:
        self.source_end = source_end
        self.target_end = target_end
        self.socket = socket
        self._quiet = quiet
        self._migration: Migration | None = None
        self._thawed = False

    @property
    def handing_over(self) -> bool:
        """The target takes writes, or may."""
        return self._migration is not None and self._migration.handing_over

    @property
    def left_frozen(self) -> bool:
        """The source takes no writes, because of us."""
        return self._migration is not None and self._migration.froze and not self._thawed

    async def run(self, *, cut_over: bool, replace: bool, thaw_source: bool) -> Report:
        _end_cleanly()
        source = await ends.open_source(self.source_end, self.socket)
        try:
            target = await ends.open_target(self.target_end)
            try:
                with _Progress(quiet=self._quiet) as progress:
                    return await self._moved(source, target, progress.tell, cut_over, replace, thaw_source)
            finally:
                await target.close()
        finally:
            await source.close()

    async def _moved(
        self, source: Source, target: Target, tell: Tell, cut_over: bool, replace: bool, thaw_source: bool
    ) -> Report:
        from statesvc.moving.migration import Migration

        self._migration = migration = Migration(source, target, tell)
        try:
            report = await migration.run(cut_over=cut_over, replace=replace)
        finally:
            if thaw_source:
                await source.thaw()
                self._thawed = True
        report.source_frozen = report.source_frozen and not thaw_source
        return report

    async def thaw_source(self) -> None:
        source = await ends.open_source(self.source_end, self.socket)
        try:
            await source.thaw()
        finally:
            await source.close()


def _end_cleanly() -> None:
    """SIGTERM as SIGINT: what is open is closed, and it is said how to go on."""
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


class _Progress:
    """A meter for each step, one after the other."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._what = ""
        self._meter: Meter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def tell(self, what: str, done: int, total: int) -> None:
        if self._quiet:
            return
        if what != self._what or self._meter is None:
            self._clear()
            self._what, self._meter = what, Meter(what, _UNITS.get(what, "rows"))
        self._meter.told(done, total)

    def _clear(self) -> None:
        if self._meter is not None:
            self._meter.__exit__(None, None, None)
            self._meter = None


# --- what is said --------------------------------------------------------------------------------------------------


def _say_frozen(move: _Move) -> None:
    if move.left_frozen and move.handing_over:
        click.echo(
            "statesvc: the source is frozen, and the target takes over or has done so: go on with the same command",
            err=True,
        )
    elif move.left_frozen:
        click.echo(
            "statesvc: the source is frozen: go on with the same command, or take that back with --thaw-source "
            "instead of --cut-over",
            err=True,
        )


def _show_report(report: Report, move: _Move, format: str) -> None:
    told = _told(report, move)
    if format != "table":
        _show(told, format)
        return
    headings = ["KIND", "ROWS", "IN THE TARGET", "DIGEST OF THE SOURCE", "DIGEST OF THE TARGET"]
    rows = [[kind, *_columns(sides)] for kind, sides in told["kinds"].items()]
    show_table(headings, [*rows, ["all", *_columns(told["whole"])]], ["ROWS", "IN THE TARGET"])
    click.echo(
        f"written {report.written:,}, removed {report.removed:,}, followed {report.followed:,} entries of the log, "
        f"in {report.seconds:.1f} s"
    )
    if report.left_out:
        click.echo(f"left out {report.left_out:,} ended jobs that the target would forget at once (ttl_days)")
    click.echo(told["next"])


def _columns(sides: dict[str, Any]) -> list[Any]:
    source, target = sides["source"], sides["target"]
    return [source["rows"], target["rows"], source["digest"], target["digest"]]


def _told(report: Report, move: _Move) -> dict[str, Any]:
    from msgspec import to_builtins

    told: dict[str, Any] = to_builtins(report)
    names = {"source": move.source_end.shown, "target": move.target_end.shown}
    return {**told, **names, "next": _next(report)}


def _next(report: Report) -> str:
    if report.already:
        frozen = "; the target is frozen: let it take writes with `statesvc thaw` there" if report.target_frozen else ""
        return f"it was completed before; nothing was done{frozen}"
    if report.complete:
        frozen = "the source is frozen" if report.source_frozen else "the source takes writes too"
        return f"the target has taken over: {frozen}; start daemons on the target"
    seen = "source and target are the same" if report.equal else f"{report.differing:,} records changed meanwhile"
    return f"copied and caught up, {seen}; this is not the cut-over: run it again with --cut-over"


def _show(told: dict[str, Any], format: str) -> None:
    if format == "table":
        for name, value in told.items():
            click.echo(f"{name}: {value}")
    else:
        show_value(told, format)

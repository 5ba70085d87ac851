"""`statesvc stats`, `health` and `stuck`: figures and verdicts. Must not know how they are made."""

from __future__ import annotations

from typing import Any

import click

from statesvc.cli.failures import ERROR
from statesvc.cli.filters import filter_of, filter_options
from statesvc.cli.options import Talk, kind_option, talking, talks
from statesvc.cli.output import show_one, show_pages, show_table, show_value

_BAR_CHARS = 30
_DURATION_FIELDS = ("mean", "p50", "p90", "p99", "max")

# A table over many records is worth waiting for.
_COUNTING_SECONDS = 60.0


@click.command("stats")
@click.option(
    "--by", metavar="FIELD", help="What to count by: a field, or a path such as /metadata/team; status if not given."
)
@filter_options
@click.option("--kind", default="job", show_default=True, help="What kind of record; * counts records by kind.")
@talking(timeout=_COUNTING_SECONDS)
def stats_command(talk: Talk, *, by: str | None, **asked: Any) -> None:
    """Count records, and say how long they waited and ran."""
    with talk.open() as session:
        reply = session.ask("stats", kind=talk.kind, by=by, filter=filter_of(asked))
    if talk.format != "table":
        show_value(_without_envelope(reply), talk.format)
        return
    heading = by or ("kind" if talk.kind == "*" else "status")
    _show_counts(heading.upper(), reply.get("counts") or {}, reply.get("total", 0))
    if reply.get("durations"):
        click.echo()
        _show_durations(reply["durations"])
    if reply.get("truncated"):
        click.echo("there are more values than are shown", err=True)


def _show_counts(heading: str, counts: dict[str, int], total: int) -> None:
    most = max(counts.values(), default=0)
    rows = [
        [value or "-", f"{count:,}", f"{100 * count / max(total, 1):.0f}%", "#" * -(-_BAR_CHARS * count // most)]
        for value, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    ]
    show_table([heading, "COUNT", "SHARE", ""], [*rows, ["total", f"{total:,}", "", ""]], ("COUNT", "SHARE"))


def _show_durations(durations: dict[str, dict[str, Any]]) -> None:
    headings = ["DURATION", "COUNT", *(name.upper() for name in _DURATION_FIELDS)]
    rows = [
        [name, f"{spent.get('count', 0):,}", *(in_words(spent.get(field, 0.0)) for field in _DURATION_FIELDS)]
        for name, spent in durations.items()
    ]
    show_table(headings, rows, headings[1:])


def in_words(seconds: float) -> str:
    """A duration as people say it: 250ms, 3.2s, 5m10s, 2h05m, 3d04h."""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, hours, days = (int(seconds // size) for size in (60, 3600, 86_400))
    if hours < 1:
        return f"{minutes}m{int(seconds % 60):02}s"
    return f"{hours}h{minutes % 60:02}m" if days < 1 else f"{days}d{hours % 24:02}h"


@click.command("health")
@click.option("--live", is_flag=True, help="Ask only whether the daemon lives, not whether it is ready.")
@talks
def health_command(talk: Talk, *, live: bool) -> None:
    """Say how the daemon is, check by check.

    Exits 0 when it is ready, 1 when it is not, 5 when nobody answers. With --live the exit code tells only whether
    it lives: a probe that restarts it asks that.
    """
    with talk.open(introduced=False) as session:
        reply = session.ask("health")
    if talk.format == "table":
        _show_health(reply)
    else:
        show_value(_without_envelope(reply), talk.format)
    if not reply.get("live" if live else "ready"):
        click.get_current_context().exit(ERROR)


def _show_health(reply: dict[str, Any]) -> None:
    about = ("live", "ready", "version", "backend", "durability", "epoch")
    show_one({name: reply[name] for name in about if name in reply}, "table")
    click.echo()
    rows = [[check.get("name"), check.get("verdict"), check.get("detail", "")] for check in reply.get("checks") or []]
    show_table(["CHECK", "VERDICT", "DETAIL"], rows)
    if reply.get("measures"):
        click.echo()
        show_table(
            ["MEASURE", "VALUE"], [[name, f"{value:,}"] for name, value in reply["measures"].items()], ("VALUE",)
        )


@click.command("stuck")
@click.option("--seconds", type=click.FloatRange(0), metavar="N", help="Also what had no update for so long.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most so many records.")
@filter_options
@kind_option
@talking(timeout=_COUNTING_SECONDS)
def stuck_command(talk: Talk, *, seconds: float | None, limit: int | None, **asked: Any) -> None:
    """Print live records that do not move, and why.

    Exits 0 whether there are some or not.
    """
    with talk.open() as session:
        reply = session.ask("stuck", kind=talk.kind, seconds=seconds, limit=limit, filter=filter_of(asked))
    found = reply.get("stuck") or []
    if talk.format == "table":
        rows = [
            [each.get("id"), each.get("status", "-"), each.get("updatedAt", "-"), "; ".join(each.get("reasons", []))]
            for each in found
        ]
        show_table(["ID", "STATUS", "UPDATED", "REASONS"], rows)
    else:
        show_pages([found], talk.format)
    if reply.get("truncated"):
        click.echo("there are more: --limit, or a filter, tells which are shown", err=True)


def _without_envelope(reply: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in reply.items() if name not in ("requestId", "success")}

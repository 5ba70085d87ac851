"""`statesvc init`: what the configured engine needs from outside, looked at or made. Must not know how it is made."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from statesvc.cli.failures import DATA_CORRUPT, ERROR
from statesvc.cli.options import output_option
from statesvc.cli.output import chosen_format, show_table, show_value
from statesvc.cli.paths import A_PATH

if TYPE_CHECKING:
    from statesvc.backends.port import Step
    from statesvc.config import Settings

ENGINE_AWAY = 69


class _Away(Exception):
    """The engine cannot be reached."""

    exit_code = ENGINE_AWAY


@click.command("init")
@click.option("--backend", metavar="NAME", help="sqlite (default), memory, redis or dynamodb.")
@click.option("--data", type=A_PATH, help="The folder of the sqlite files.")
@click.option("--config", type=A_PATH, help="The configuration file.")
@click.option("--dry-run", is_flag=True, help="Only look, and print what would be made; change nothing.")
@output_option
@click.pass_context
def init_command(ctx: click.Context, /, dry_run: bool, output: str | None, **flags: Any) -> None:
    """Make what the configured engine needs, and check what is there.

    Tables, indexes and TTL of DynamoDB, what has to hold for Redis, the folder of sqlite. It can be done again at any
    time, and while daemons serve. With --dry-run it prints for DynamoDB also the smallest IAM policy that will do.

    Exits 0 when everything is there or was made, 1 when --dry-run found something missing, 65 when something is wrong
    that a person has to put right, 69 when the engine cannot be reached, 73 for an unsafe path, 78 for a bad
    configuration.
    """
    from statesvc.config import load

    settings = load(flags).settings
    steps = asyncio.run(_prepared(settings, dry_run=dry_run))
    policies = _policies(settings) if dry_run else {}
    _show(settings.backend, steps, policies, chosen_format(output))
    ctx.exit(_exit_code(steps))


async def _prepared(settings: Settings, *, dry_run: bool) -> list[Step]:
    from statesvc import backends
    from statesvc.store.adopting import adopted
    from statesvc.store.kinds import Kinds
    from statesvc.store.store import Store
    from statesvc_client.errors import ServiceFault

    engine = backends.make(settings)
    # Records of another hand are given what they need to be found.
    engine.adopt = partial(adopted, Store(engine, kinds=Kinds(settings.lifecycles)))
    try:
        return await engine.prepare(dry_run=dry_run)
    except ServiceFault as away:
        raise _Away(away.text) from None
    finally:
        await engine.close()


def _exit_code(steps: list[Step]) -> int:
    states = {step.state for step in steps}
    return DATA_CORRUPT if "wrong" in states else ERROR if "missing" in states else 0


def _policies(settings: Settings) -> dict[str, Any]:
    """What has to be allowed where permissions are a document: to the daemon, and to this command."""
    if settings.backend != "dynamodb":
        return {}
    from statesvc.backends.dynamodb.policy import PREPARING, SERVING, policy
    from statesvc.backends.dynamodb.tables import Wanted

    options = settings.storage.dynamodb
    wanted = Wanted.of(options)
    tables = (wanted.jobs, wanted.companion)
    return {
        name: policy(actions, *tables, region=options.region)
        for name, actions in (("daemon", SERVING), ("init", PREPARING))
    }


def _show(backend: str, steps: list[Step], policies: dict[str, Any], format: str) -> None:
    if format != "table":
        told = {"backend": backend, "steps": [step._asdict() for step in steps]}
        show_value({**told, "policies": policies} if policies else told, format)
        return
    if steps:
        show_table(["STATE", "WHAT", "DETAIL"], [[step.state, step.what, step.detail] for step in steps])
    else:
        click.echo(f"{backend} needs nothing")
    for name, document in policies.items():
        click.echo(f"\nIAM policy for {'the daemon' if name == 'daemon' else 'statesvc init'}:")
        show_value(document, "json")

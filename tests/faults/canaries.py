"""Secrets made up for one test, and everywhere they could turn up.

Owns where is looked. Must not know where a secret may be seen: a test says that.
"""

from __future__ import annotations

import base64
import secrets
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.daemon.harness import SECONDS, Client, Daemon, environment


def canary(name: str) -> str:
    """A secret nobody has seen before."""
    return f"{name}-{secrets.token_hex(12)}"


class Ears:
    """Everything that was said, by who or what said it."""

    def __init__(self) -> None:
        self._heard: list[tuple[str, bytes]] = []

    def hear(self, who: str, said: object) -> None:
        self._heard.append((who, said if isinstance(said, bytes) else str(said).encode(errors="replace")))

    def ask(self, client: Client, op: str, /, **fields: Any) -> dict[str, Any]:
        """Ask, and remember the reply under the name of the op."""
        reply = client.ask(op, **fields)
        self.hear(op, reply)
        return reply

    def command(self, *words: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
        """Run a command of ours and remember what it printed, under its words."""
        run = subprocess.run(
            [sys.executable, "-m", "statesvc", *words],
            env={**environment(), **variables},
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
        self.hear(f"statesvc {' '.join(words)}", run.stdout + run.stderr)
        return run

    def process(self, daemon: Daemon, *, environ: bool = True) -> None:
        """What every user (cmdline) and its own user (environ) can see of the process and its children."""
        for pid in (daemon.pid, *_children(daemon.pid)):
            self.hear(f"cmdline of {pid}", Path(f"/proc/{pid}/cmdline").read_bytes())
            if environ:
                self.hear(f"environ of {pid}", Path(f"/proc/{pid}/environ").read_bytes())

    def files(self, folder: Path, *, but: Iterable[Path] = ()) -> None:
        """All that lies below the folder."""
        left_out = set(but)
        for path in folder.rglob("*"):
            self.hear(f"name {path}", path.name)
            if path.is_file() and path not in left_out:
                self.hear(f"file {path.relative_to(folder)}", path.read_bytes())

    def who_said(self, *known: str) -> set[str]:
        """Those who let one of the secrets out, plainly or in one of the usual disguises."""
        forms = [form for each in known for form in _forms(each)]
        return {who for who, said in self._heard if any(form in said for form in forms)}

    @property
    def everybody(self) -> set[str]:
        return {who for who, _ in self._heard}


def _forms(secret: str) -> list[bytes]:
    plain = secret.encode()
    return [plain, plain.hex().encode(), base64.b64encode(plain).rstrip(b"=")[:-1]]


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

"""The same daemon under a coverage-guided fuzzer, which keeps what reaches code that nothing reached before.

    python -m tests.faults.fuzz.guided --seconds 60 [--grow FOLDER]
    python -m tests.faults.fuzz.guided --merge FOLDER

Owns how long it is run, and how what it kept comes into the corpus. Must not know what it does inside: it takes over
the process it runs in, which is guided_process.py. Needs atheris, which nothing else does.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.faults import program

from .inputs import CORPUS

LONGEST_INPUT = 4096

CHATTER = ("#", '"')
"""How lines of libFuzzer's begin that tell how far it is, many times a second, or what it would put in a dictionary."""

_EXECUTED = re.compile(r"stat::number_of_executed_units: *(\d+)")
_COVERED = re.compile(r"^#\d+\s.*\bcov: (\d+)")


class Outcome(NamedTuple):
    """What a run came to."""

    code: int
    """0 when nothing was found."""
    executions: int = 0
    coverage: int = 0
    """Places in the code that were reached, as libFuzzer counts them."""

    def told(self, line: str) -> Outcome:
        """After a line of libFuzzer's."""
        executed, covered = _EXECUTED.search(line), _COVERED.search(line)
        return self._replace(
            executions=int(executed[1]) if executed else self.executions,
            coverage=int(covered[1]) if covered else self.coverage,
        )


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--grow", type=Path, help="where new inputs go; a temporary folder otherwise")
    parser.add_argument("--merge", type=Path, help="take into the corpus what a folder has beyond it, and end")
    parser.add_argument("--keep", type=Path, default=Path("var/fuzz"), help="where inputs go that broke something")
    asked = parser.parse_args(given)
    if asked.merge is not None:
        return merge(asked.merge)
    return run(asked.seconds, seed=asked.seed, grow=asked.grow, keep=asked.keep).code


def run(seconds: int, *, seed: int, keep: Path, grow: Path | None = None) -> Outcome:
    """Fuzz for so long."""
    with program.scratch() as temporary:
        grown = grow or temporary
        grown.mkdir(parents=True, exist_ok=True)
        keep.mkdir(parents=True, exist_ok=True)
        return _in_its_own_process(
            f"-max_total_time={seconds}", f"-seed={seed}", f"-artifact_prefix={keep}/", str(grown), str(CORPUS)
        )


def merge(grown: Path) -> int:
    """Take into the corpus what reaches code that nothing in it reaches, under names that can be read."""
    code = _in_its_own_process("-merge=1", "-use_counters=0", str(CORPUS), str(grown)).code
    for path in CORPUS.iterdir():
        if re.fullmatch("[0-9a-f]{40}", path.name):
            path.rename(CORPUS / f"grown-{_about(path.read_bytes())}-{path.name[:8]}")
    return code


def _about(stream: bytes) -> str:
    """The first op in it that says something, for its name."""
    ops = [op.decode() for op in re.findall(rb'"op":"([a-z]+)"', stream)]
    return next((op for op in ops if op != "hello"), ops[0] if ops else "bytes")


def _in_its_own_process(*options: str) -> Outcome:
    """libFuzzer ends the process it runs in. What it says is shown as it comes, and how far it is now and then."""
    common = [f"-max_len={LONGEST_INPUT}", "-timeout=60", "-rss_limit_mb=1024", "-print_final_stats=1"]
    command = [sys.executable, "-m", "tests.faults.fuzz.guided_process", *common, *options]
    # It ends without tidying up.
    with program.scratch() as folder:
        env = os.environ | {"TMPDIR": str(folder)}
        outcome, how_far = Outcome(0), program.NowAndThen()
        with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True, errors="replace") as process:
            try:
                assert process.stderr is not None
                for line in process.stderr:
                    (how_far if line.startswith(CHATTER) else program.say)(line.rstrip("\n"))
                    outcome = outcome.told(line)
            except BaseException:
                process.kill()
                raise
    return outcome._replace(code=process.returncode)


if __name__ == "__main__":
    sys.exit(main())

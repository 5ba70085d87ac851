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

from tests.faults import program

from .inputs import CORPUS

LONGEST_INPUT = 4096


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
    return run(asked.seconds, seed=asked.seed, grow=asked.grow, keep=asked.keep)


def run(seconds: int, *, seed: int, keep: Path, grow: Path | None = None) -> int:
    """Fuzz for so long. 0 when nothing was found."""
    with program.scratch() as temporary:
        grown = grow or temporary
        grown.mkdir(parents=True, exist_ok=True)
        keep.mkdir(parents=True, exist_ok=True)
        return _in_its_own_process(
            f"-max_total_time={seconds}", f"-seed={seed}", f"-artifact_prefix={keep}/", str(grown), str(CORPUS)
        )


def merge(grown: Path) -> int:
    """Take into the corpus what reaches code that nothing in it reaches, under names that can be read."""
    code = _in_its_own_process("-merge=1", "-use_counters=0", str(CORPUS), str(grown))
    for path in CORPUS.iterdir():
        if re.fullmatch("[0-9a-f]{40}", path.name):
            path.rename(CORPUS / f"grown-{_about(path.read_bytes())}-{path.name[:8]}")
    return code


def _about(stream: bytes) -> str:
    """The first op in it that says something, for its name."""
    ops = [op.decode() for op in re.findall(rb'"op":"([a-z]+)"', stream)]
    return next((op for op in ops if op != "hello"), ops[0] if ops else "bytes")


def _in_its_own_process(*options: str) -> int:
    """libFuzzer ends the process it runs in."""
    common = [f"-max_len={LONGEST_INPUT}", "-timeout=60", "-rss_limit_mb=1024", "-print_final_stats=1"]
    command = [sys.executable, "-m", "tests.faults.fuzz.guided_process", *common, *options]
    # It ends without tidying up.
    with program.scratch() as folder:
        return subprocess.run(command, check=False, env=os.environ | {"TMPDIR": str(folder)}).returncode


if __name__ == "__main__":
    sys.exit(main())

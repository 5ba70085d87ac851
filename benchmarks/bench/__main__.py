"""`python -m benchmarks.bench`. Owns nothing but where the project's own packages are found."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "client")]

from benchmarks.bench.program import main  # noqa: E402 - found only now

if __name__ == "__main__":
    sys.exit(main())

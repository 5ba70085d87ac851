"""`python -m benchmarks.counts`. Owns nothing but where the project's own packages are found."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "client")]

from benchmarks.counts.program import main  # noqa: E402 - found only now

if __name__ == "__main__":
    sys.exit(main())

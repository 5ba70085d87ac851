"""What the hot path takes, counted instead of timed: calls, bytecodes and what stays in memory, for each request.

    python -m benchmarks.counts [--write]

Counts are the same on a busy machine and on a quiet one, so a test can hold them. `bounds.json` keeps what was counted
when it was last renewed; tests/benchmarks/test_hot_path.py fails when a request takes much more than that. Work inside
C libraries is one call however long it takes: speed itself is measured by benchmarks/bench.
"""

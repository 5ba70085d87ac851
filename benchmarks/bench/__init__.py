"""The benchmark suite: statesvc beside what an agent would use instead, on the same work, in the same run.

    python -m benchmarks.bench [--quick] [--only NAME] [-o json]

A measure (measures/) names its cases; running.py runs them in turn, round by round; goals.py compares, report.py,
plot.py and readme.py show. How it measures and how to read it: docs/BENCHMARKS.md.
"""

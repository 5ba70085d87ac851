"""The command line: what a person or a script types. Commands load when they are used.

Must not know rules or engines: client verbs talk to the daemon over its socket like everybody else, and
`serve` hands its settings to the server. The one exception is offline.py, for a store that no daemon can open.
"""

from statesvc.cli.app import cli, main

__all__ = ["cli", "main"]

"""What a daemon needs of the operating system: its socket, its locks, its supervisor and its parent.

Leaves of the tree: standard library only, nothing of statesvc. Import the modules by name; this file loads
none of them, because the socket must be up before anything slow is imported.
"""

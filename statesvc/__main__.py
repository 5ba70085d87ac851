"""`python -m statesvc` is the command `statesvc`."""

from statesvc.cli import main

if __name__ == "__main__":
    main()

"""The front door of the command line.

Owns the one decision of what to import: `exec` is called in loops and has 0.3 s for everything, so it does without the
library that reads all other commands. Exit status: 0 done, 1 error, 2 wrong usage; for `exec` and `run` see
`quick_exec.py`.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; ends the process with its exit status."""
    if sys.argv[1:2] == ["exec"]:
        from sandkeeper.cli.quick_exec import main as run_exec

        run_exec(sys.argv[2:])
    else:
        from sandkeeper.cli.table import app

        app(prog_name="sandkeeper")


if __name__ == "__main__":
    main()

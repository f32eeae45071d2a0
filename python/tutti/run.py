"""Starts the ranks of a job: python -m tutti.run OPTIONS PROGRAM ARGUMENTS, as `tutti run` does."""

import os
import sys
from importlib import metadata
from pathlib import Path

from tutti import __distribution__


def launcher() -> Path:
    """The program `tutti` that was installed, or built, with this package."""
    beside = Path(__file__).absolute().parents[1] / "bin" / "tutti"  # a build tree, pip --target
    if os.access(beside, os.X_OK):
        return beside
    try:
        files = metadata.files(__distribution__) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        if path.name == "tutti" and os.access(path, os.X_OK) and path.is_file():
            return path.resolve()
    raise SystemExit(f"tutti.run: the program tutti was not installed with {__distribution__}")


def main() -> None:
    program = launcher()
    os.environ["TUTTI_PYTHON"] = sys.executable  # scripts run in the same Python
    os.execv(program, [str(program), "run", *sys.argv[1:]])


if __name__ == "__main__":
    main()

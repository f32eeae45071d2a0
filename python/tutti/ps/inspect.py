"""Shows what a checkpoint of a parameter server holds: python -m tutti.ps.inspect FOLDER [--json]."""

from __future__ import annotations

import argparse
import glob
import json
import os
import sys
from typing import Any, Dict, List

from tutti._core import ps as core
from tutti.errors import Error

_HEAD = ("", "rule", "rows", "dim", "bytes")


def _count(number: int, of: str) -> str:
    return f"{number} {of}" + ("" if number == 1 else "s")


def _lines(contents: Dict[str, Any]) -> List[str]:
    rows = [_HEAD]
    for kind in ("tables", "dense"):
        for name, of in contents[kind].items():
            rows.append((name, of["rule"], f"{of['rows']:,}", str(of["dim"]), f"{of['bytes']:,}"))
    total = sum(of["bytes"] for kind in ("tables", "dense") for of in contents[kind].values())
    rows.append(("", "", "", "", f"{total:,}"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    return ["  ".join(cell.ljust(width) if column < 2 else cell.rjust(width)
                      for column, (cell, width) in enumerate(zip(row, widths))).rstrip()
            for row in rows]


def _below(folder: str) -> str:
    """Which folders in one that holds no checkpoint do, as those that epochs of an example wrote."""
    if os.path.exists(os.path.join(folder, "manifest")):
        return ""
    found = sorted(glob.glob(os.path.join(glob.escape(folder), "*", "manifest")))
    return f"; these hold one: {', '.join(map(os.path.dirname, found))}" if found else ""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tutti.ps.inspect", description="Checks a "
                                     "checkpoint of a parameter server, and shows what it holds.")
    parser.add_argument("folder")
    parser.add_argument("--json", action="store_true", help="for programs")
    options = parser.parse_args()
    try:
        contents = core.inspect(options.folder)
    except Error as error:
        raise SystemExit(f"tutti.ps.inspect: {error}{_below(options.folder)}") from None
    if options.json:
        print(json.dumps(contents))
        return
    print(f"{options.folder}: written by {_count(contents['servers'], 'server')}"
          + (f" after {_count(contents['round'], 'round')}" if contents["round"] else ""))
    print("\n".join(_lines(contents)))


if __name__ == "__main__":
    try:
        main()
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

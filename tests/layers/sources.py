"""What the checks of the sources have in common: the files, and the report."""

import sys
from pathlib import Path

SUFFIXES = {".hpp", ".cpp", ".cuh", ".cu"}


def source_files(root, folders):
    """The C++ and CUDA files of these folders, relative to `root`, in order."""
    return sorted(
        path.relative_to(root).as_posix()
        for folder in folders
        for path in (root / folder).rglob("*")
        if path.suffix in SUFFIXES
    )


def report(check_tree, unit):
    """Prints what check_tree(ROOT) finds wrong, of how many `unit`; the exit status."""
    faults, count = check_tree(Path(sys.argv[1]))
    print("\n".join(faults + [f"{count} {unit}, {len(faults)} faults"]))
    return 1 if faults or not count else 0

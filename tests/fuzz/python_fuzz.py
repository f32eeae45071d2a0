#!/usr/bin/env python3
"""Fuzzes what the Python package decodes: array protocols, .npz files, states.

    python_fuzz.py NAME [--seconds S | --runs N] [--seed N]   arrays, npz or state
    python_fuzz.py NAME --seed N --only I                     input I of that seed alone

Inputs are decoded in a process of its own, so that one that ends it is reported, too. An input is
accepted, or refused by one of the errors that are documented; anything else is a failure.
"""

import argparse
import faulthandler
import mmap
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(1, str(HERE.parent / "python"))  # of its made_up_arrays
WORD = 8  # bytes of the number of the input that is under way
LONGEST = 30  # seconds for one input


class Outcomes:
    """What became of the inputs."""

    def __init__(self):
        self.accepted = 0
        self.refused = 0
        self.ways = set()

    def refuse(self, error):
        self.refused += 1
        self.ways.add((type(error).__name__, re.sub(r"'[^']*'|\W|\d", "", str(error))[:60]))


def work(options):
    """In the process of its own: decodes inputs, each one a function of the seed and its number."""
    faulthandler.enable()
    module = __import__(f"fuzz_{options.name}")
    with open(options.progress, "r+b") as file:
        progress = mmap.mmap(file.fileno(), WORD)
    fuzzer = module.Fuzzer()
    outcomes = Outcomes()
    start = time.monotonic()
    number = options.first
    while (number < options.runs if options.seconds is None
           else time.monotonic() - start < options.seconds):
        progress[:WORD] = number.to_bytes(WORD, "little")
        faulthandler.dump_traceback_later(LONGEST, exit=True)
        thing = fuzzer.make(random.Random(f"{options.seed}:{number}"))
        try:
            fuzzer.decode(thing)
            outcomes.accepted += 1
        except module.REFUSALS as error:
            outcomes.refuse(error)
        number += 1
    faulthandler.cancel_dump_traceback_later()
    if not outcomes.accepted or not outcomes.refused:
        assert number == options.first + 1, "all inputs had the same outcome"
    print(f"python_fuzz.py {options.name}: {number - options.first} inputs of seed {options.seed} "
          f"in {time.monotonic() - start:.1f} s, {outcomes.accepted} accepted, "
          f"refused in {len(outcomes.ways)} ways")


def watch(options, arguments):
    """Starts that process; says which input it ended with, if it did not end well."""
    with tempfile.NamedTemporaryFile() as progress:
        progress.write(bytes(WORD))
        progress.flush()
        status = subprocess.run([sys.executable, __file__, *arguments, "--progress", progress.name],
                                check=False).returncode
        number = int.from_bytes(Path(progress.name).read_bytes(), "little")
    if status != 0:
        how = f"signal {-status}" if status < 0 else f"status {status}"
        print(f"input {number} ended it with {how}; to run it again: "
              f"PYTHONPATH={os.environ.get('PYTHONPATH', '')} {sys.executable} {__file__} "
              f"{options.name} --seed {options.seed} --only {number}", file=sys.stderr)
    return 1 if status else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=("arrays", "npz", "state"))
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int)
    parser.add_argument("--progress", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.first = 0
    if options.only is not None:
        options.first, options.runs, options.seconds = options.only, options.only + 1, None
    if options.progress:
        work(options)
        return 0
    return watch(options, sys.argv[1:])


if __name__ == "__main__":
    os.environ.setdefault("TUTTI_TIMEOUT", "20")
    sys.exit(main())

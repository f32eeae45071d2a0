#!/usr/bin/env python3
"""The messages that docs/clusters.md explains are those that the sources print, and the variables that the sources read
are those that a misspelt one is compared with: messages_test.py ROOT."""

import re
import sys
import unittest
from pathlib import Path

# Parts of messages of tutti's own. What Open MPI and ssh print is theirs to change.
PARTS = (
    "which is no interface of ",
    "no answer from the host",
    "its process has ended",
    "did not answer within ",
    "did not come within ",
    " cannot reach the launcher at ",
    "not all wrappers have called",
    ", by which other machines are reached, is not in PATH on ",
    " cannot connect to ",
    "could not let other hosts connect",
    "could not share connections with the other ranks of its host",
    "a Store lets no more ranks of other hosts connect",
    "/dev/shm has ",
    "the UniqueId has been used already: each communicator needs one of its own",
    " keeps others waiting: ",
    "several ranks share a GPU: this works, but it is slow",
)


def text_of_strings(root):
    """The sources, in which neighbouring string literals are one."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(root.glob("src/**/*.[ch]pp"))]
    return re.sub(r'"\s*\n\s*"', "", "\n".join(texts))


def variables_in(root, *patterns):
    texts = [path.read_text(encoding="utf-8") for pattern in patterns for path in root.glob(pattern)]
    return set(re.findall(r'"(TUTTI_[A-Z_]*[A-Z])"', "\n".join(texts)))


class Messages(unittest.TestCase):
    root = Path()

    def test_are_printed_and_explained(self):
        document = (self.root / "docs/clusters.md").read_text(encoding="utf-8")
        explained = document[document.index("## What errors mean") :]
        printed = text_of_strings(self.root)
        for part in PARTS:
            with self.subTest(part=part):
                self.assertTrue(part in explained, "docs/clusters.md does not explain it")
                self.assertTrue(part in printed, "no source prints it")

    def test_all_variables_are_known(self):
        known = variables_in(self.root, "src/base/misspelt.cpp")
        read = variables_in(self.root, *(f"{place}/**/*.{kind}" for place in ("src", "python", "examples")
                                         for kind in ("cpp", "hpp", "py")))
        self.assertEqual(known, read, "src/base/misspelt.cpp: kKnown")


if __name__ == "__main__":
    Messages.root = Path(sys.argv.pop())
    unittest.main()

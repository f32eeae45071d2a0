#!/usr/bin/env python3
"""Checks check_links.py: each planted fault must be found, and sound documents must pass."""

import tempfile
import unittest
from pathlib import Path

from check_links import check_tree

SOUND = {
    "README.md": "# All\n[a](docs/a.md) [`b`](docs/a.md#the-b-of-it) ![c](docs/c.svg) [d](https://d.d/#d)\n"
    "`[no](link.md)`\n\n    [no](link.md)\n\n```\n[no](link.md)\n# no heading\n```\n",
    "docs/a.md": "# A\n## The `b` of it\n## Twice, here\n## Twice, here\n"
    "[up](../README.md#all) [here](#twice-here-1) [folder](../docs)\n",
    "docs/c.svg": "",
}

# Each: what is added to the README, and what the checker has to say of it.
FAULTS = [
    ("[x](docs/x.md)", "there is no docs/x.md"),
    ("![x](x.svg)", "there is no x.svg"),
    ("[x](docs/a.md#x)", "docs/a.md has no heading #x"),
    ("[x](#x)", "it has no heading #x"),
    ("[x](docs/a.md#twice-here-2)", "docs/a.md has no heading #twice-here-2"),
    ("[x](#no-heading)", "it has no heading #no-heading"),
]


def check(files):
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, encoding="utf-8")
        return check_tree(root)


class CheckLinksTest(unittest.TestCase):
    def test_sound_documents_pass(self):
        self.assertEqual(check(SOUND), ([], 7))

    def test_planted_faults_are_found(self):
        line = SOUND["README.md"].count("\n") + 1
        for text, expected in FAULTS:
            with self.subTest(text=text):
                faults, _ = check({**SOUND, "README.md": SOUND["README.md"] + text})
                self.assertEqual(faults, [f"README.md:{line}: {expected}"])


if __name__ == "__main__":
    unittest.main(argv=["check_links_test"])

#!/usr/bin/env python3
"""Checks that relative links of the documents lead to files that are there, and anchors to headings."""

import re
import sys
from collections import Counter
from pathlib import Path

LINK = re.compile(r"\]\(([^()\s]+)\)")
HEADING = re.compile(r"#+ (.*)")


def documents(root):
    return sorted([*root.glob("*.md"), *root.glob("docs/*.md")])


def lines_of(path):
    """The numbered lines of a document that are no code."""
    fenced = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("    "):
            yield number, line


def anchors_of(path):
    """What GitHub calls the headings of a document: their words, and a number where these come again."""
    seen = Counter()
    anchors = set()
    for _, line in lines_of(path):
        if heading := HEADING.fullmatch(line):
            anchor = re.sub(r"[^\w\- ]", "", heading[1].lower()).replace(" ", "-")
            anchors.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
            seen[anchor] += 1
    return anchors


def fault_of(path, link):
    """What is wrong with a link of the document at `path`; empty if nothing is."""
    if re.match(r"[a-z]+:", link):
        return ""
    name, _, anchor = link.partition("#")
    target = (path.parent / name) if name else path
    if not target.exists():
        return f"there is no {name}"
    if anchor and anchor not in anchors_of(target):
        return f"{name or 'it'} has no heading #{anchor}"
    return ""


def check_tree(root):
    """The faults, and how many links there are."""
    faults, count = [], 0
    for path in documents(root):
        for number, line in lines_of(path):
            for link in LINK.findall(re.sub(r"`[^`]*`", "", line)):
                count += 1
                if fault := fault_of(path, link):
                    faults.append(f"{path.relative_to(root)}:{number}: {fault}")
    return faults, count


def main():
    faults, count = check_tree(Path(sys.argv[1]))
    print("\n".join(faults) or f"{count} links lead somewhere")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())

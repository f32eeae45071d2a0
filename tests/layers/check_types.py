#!/usr/bin/env python3
"""Checks that no two files define types of the same qualified name: check_types.py ROOT.

Such types violate C++'s one-definition rule even if no file sees both: the linker takes one of
their inline functions for both. Those of anonymous namespaces and of function bodies belong to
their file.
"""

import re
import sys
from collections import defaultdict

from sources import report, source_files

# All that may be linked into one program.
FOLDERS = ("include", "src", "python", "examples", "benchmarks", "tests")

# What is no code. An apostrophe between digits is part of a number.
NO_CODE = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])'|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*",
    re.DOTALL | re.MULTILINE,
)
NAMESPACE = re.compile(r"\bnamespace\b\s*(?:\[\[.*?\]\]\s*)?([\w:]*)\s*$")
LINKAGE = re.compile(r"\bextern\s*$")  # "C" is blanked
NO_PART_OF_A_NAME = re.compile(
    r"\[\[.*?\]\]|\balignas\s*\([^)]*\)|\b(?:public|private|protected)\s*:|\bfinal\b", re.DOTALL
)
TYPE = re.compile(
    r"\b(?:class|struct|union|enum(?:\s+(?:class|struct))?)\s+"
    r"([\w:]+(?:\s*<.*?>)?)\s*(?::(?!:).*)?$",
    re.DOTALL,
)


def without_template_parameters(head):
    """`template <class T> struct X` without what stands before `struct`."""
    while match := re.search(r"\btemplate\s*<", head):
        depth, end = 1, match.end()
        while depth and end < len(head):
            depth += {"<": 1, ">": -1}.get(head[end], 0)
            end += 1
        head = head[: match.start()] + " " + head[end:]
    return head


def scope_of(head):
    """What a brace opens, from the text before it: a name, "" for none of its own, or None for a
    scope whose types nobody else can name."""
    head = NO_PART_OF_A_NAME.sub(" ", head).strip()
    if match := NAMESPACE.search(head):
        return match.group(1) or None
    if LINKAGE.search(head):
        return ""
    if match := TYPE.search(without_template_parameters(head)):
        return re.sub(r"\s+", "", match.group(1))
    return None


def types_of(text):
    """Yields (line number, qualified name) of the types that a file defines for others to name."""
    text = NO_CODE.sub(lambda match: "\n" * match.group().count("\n") or " ", text)
    scopes = []  # of the braces that are open
    start = 0
    for token in re.finditer(r"[{};]", text):
        if token.group() == "{":
            head = text[start : token.start()]
            scope = scope_of(head)
            scopes.append(scope)
            if scope and None not in scopes and not NAMESPACE.search(head):
                number = text.count("\n", 0, token.start()) + 1
                yield number, "::".join(filter(None, scopes))
        elif token.group() == "}" and scopes:
            scopes.pop()
        start = token.end()


def check_tree(root):
    """All faults of the tree as lines of text, and how many types were found."""
    places = defaultdict(dict)
    for path in source_files(root, FOLDERS):
        for number, name in types_of((root / path).read_text(encoding="utf-8")):
            places[name].setdefault(path, number)
    faults = [
        f"{path}:{number}: {name} is also defined in {', '.join(p for p in files if p != path)}"
        for name, files in places.items()
        if len(files) > 1
        for path, number in files.items()
    ]
    return faults, len(places)


if __name__ == "__main__":
    sys.exit(report(check_tree, "types"))

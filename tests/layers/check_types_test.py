#!/usr/bin/env python3
"""Checks check_types.py: two types of one name must be found however they are written, and types
that only look alike must pass."""

import tempfile
import unittest
from pathlib import Path

from check_types import FOLDERS, check_tree, types_of

HEADER = "namespace tutti {\nstruct Packet { int data; };\n}\n"

# Other ways to define tutti::Packet, which starts on the line given.
SAME = [
    (1, "namespace tutti { struct Packet {}; }"),
    (3, "namespace tutti {\n/** A } brace. */\nclass Packet final : public Base<int> { };\n}"),
    (2, "namespace tutti {\nenum class Packet : std::uint8_t { none };\n}"),
    (2, 'extern "C" { void f(); }\nnamespace tutti { union alignas(64) Packet { int i; }; }'),
    (2, "namespace tutti { void f() { struct Other {}; }\nstruct [[nodiscard]] Packet {}; }"),
    (2, "#define X {\nstruct tutti::Packet { char brace = '{'; };"),
    (3, 'namespace tutti { auto text = "}";\ntemplate <class T, class U = List<T>>\nclass Packet {}; }'),
    (2, 'namespace tutti { auto raw = R"x(}")x"; int many = 1\'000\'000;\nstruct Packet {}; }'),
]

# These are not it.
OTHER = [
    "namespace tutti { struct Packet; class User { friend struct Packet; Packet* packet; }; }",
    "namespace tutti { namespace { struct Packet {}; } }",
    "namespace tutti::shm { struct Packet {}; }",
    "namespace tutti { namespace shm { struct Packet {}; } }",
    "namespace tutti { struct Outer { struct Packet {}; }; }",
    "namespace tutti { void f() { struct Packet {}; } }",
    "namespace tutti { struct Packet f() { return {}; } }",
    "namespace tutti { template <> struct Packet<int> {}; }",
    "// namespace tutti { struct Packet {}; }",
    "struct Packet {};",
]


def check(text, other="src/opt/b.cpp"):
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for path, content in {"include/tutti/a.hpp": HEADER, other: text}.items():
            (root / path).parent.mkdir(parents=True)
            (root / path).write_text(content, encoding="utf-8")
        return check_tree(root)[0]


class CheckTypesTest(unittest.TestCase):
    def test_two_types_of_one_name_are_found(self):
        for line, text in SAME:
            with self.subTest(text=text):
                one, other = "include/tutti/a.hpp", "src/opt/b.cpp"
                fault = "tutti::Packet is also defined in"
                expected = [f"{one}:2: {fault} {other}", f"{other}:{line}: {fault} {one}"]
                self.assertEqual(check(text), expected)

    def test_all_folders_are_searched(self):
        for folder in FOLDERS[2:]:
            with self.subTest(folder=folder):
                self.assertEqual(len(check(SAME[0][1], f"{folder}/b.cpp")), 2)

    def test_types_that_only_look_alike_pass(self):
        for text in OTHER:
            with self.subTest(text=text):
                self.assertEqual(check(text), [])

    def test_names_are_qualified(self):
        text = "namespace a::b {\nclass C { struct D {}; };\n}  // namespace a::b\nstruct E {};\n"
        self.assertEqual([name for _, name in types_of(text)], ["a::b::C", "a::b::C::D", "E"])


if __name__ == "__main__":
    unittest.main(argv=["check_types_test"])

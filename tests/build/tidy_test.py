#!/usr/bin/env python3
"""Checks what clang-tidy is to check at a time: tidy_test.py ROOT COMPILER."""

import json
import re
import sys
import tempfile
import unittest
from pathlib import Path

ROOT, COMPILER = sys.argv[1:]
sys.path.insert(0, f"{ROOT}/scripts")
import tidy  # noqa: E402


class Batches(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)
        self.entries = []

    def source(self, name, text=""):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return str(path)

    def compiled(self, file, options=""):
        command = f"{COMPILER} {options} -o {file}.o -c {file}"
        self.entries.append({"directory": str(self.folder), "file": file, "command": command})

    def program(self, name, *sources, options=""):
        """One of a unity build."""
        text = "".join(f'#include "{source}"\n' for source in sources)
        self.compiled(self.source(f"{name}.dir/Unity/unity_0_cxx.cxx", text), options)

    def batches(self):
        self.source("compile_commands.json", json.dumps(self.entries))
        return sorted(
            [str(Path(source).relative_to(self.folder)) for source in unit.sources]
            for unit in tidy.units_of(self.folder)
        )

    def test_programs_that_are_compiled_alike_are_checked_together(self):
        a, b = (self.source(f"src/{name}.cpp") for name in "ab")
        self.program("one", a)
        self.program("other", b)
        self.program("differs", self.source("src/c.cpp"), options="-O1")
        self.assertEqual(self.batches(), [["src/a.cpp", "src/b.cpp"], ["src/c.cpp"]])

    def test_what_two_programs_have_is_checked_once(self):
        a, b = (self.source(f"src/{name}.cpp") for name in "ab")
        self.program("one", a, b)
        self.program("sanitized", a, options="-fsanitize=address")
        self.assertEqual(self.batches(), [["src/a.cpp", "src/b.cpp"]])

    def test_those_that_define_the_same_are_checked_apart(self):
        for name, text in {
            "a": "namespace {\nint value = 1;\n}\n",
            "b": "namespace {\nstd::vector<int> value() {\n  return {};\n}\n}\n",
            "c": "struct value {\n};\n",
            "d": "TEST(Suite, Name) {\n  int value = 1;\n}\n",
            "e": "TEST(Suite, Name) {}\n",
        }.items():
            self.program(name, self.source(f"tests/unit/{name}.cpp", text))
        expected = [["a", "d"], ["b", "e"], ["c"]]
        self.assertEqual(self.batches(), [[f"tests/unit/{name}.cpp" for name in batch] for batch in expected])

    def test_what_has_main_or_is_compiled_alone_is_checked_alone(self):
        self.program("a", self.source("src/a.cpp", "int main() { return 0; }\n"), self.source("src/b.cpp"))
        self.compiled(self.source("src/c.cpp"))
        self.compiled(self.source("src/d.cu"))
        self.assertEqual(self.batches(), [["src/a.cpp"], ["src/b.cpp"], ["src/c.cpp"]])

    def test_what_is_found_in_a_source_that_another_includes_is_told(self):
        settings = Path(ROOT, ".clang-tidy").read_text(encoding="utf-8")
        expression = re.search(r"^HeaderFilterRegex: '(.*)'$", settings, re.MULTILINE)[1]
        for folder in ("src", "python", "examples", "tests", "benchmarks"):
            self.assertRegex(f"{ROOT}/{folder}/one/two.cpp", expression)


if __name__ == "__main__":
    unittest.main(argv=["tidy_test.py", "--verbose"])

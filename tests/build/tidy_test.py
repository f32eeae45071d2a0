#!/usr/bin/env python3
"""Checks what clang-tidy is to check at a time: tidy_test.py ROOT COMPILER."""

import json
import re
import subprocess
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
        self.program("other", b, options="-O1 -fPIC")
        self.program("differs", self.source("src/c.cpp"), options="-DNAME")
        self.assertEqual(self.batches(), [["src/a.cpp", "src/b.cpp"], ["src/c.cpp"]])

    def test_what_two_programs_have_is_checked_once(self):
        a, b = (self.source(f"src/{name}.cpp") for name in "ab")
        self.program("one", a, b)
        self.program("sanitized", a, options="-fsanitize=address")
        self.assertEqual(self.batches(), [["src/a.cpp", "src/b.cpp"]])

    def test_what_cannot_go_by_another_name_is_checked_apart(self):
        for name, text in {
            "a": "namespace {\nint value = 1;\n}\n",
            "b": "namespace {\nstd::vector<int> value() {\n  return {};\n}\n}\n",
            "c": "struct value {\n};\n",
            "d": "TEST(Suite, Name) {\n  int value = 1;\n}\n",
            "e": "TEST(Suite, Name) {}\n",
            "f": "int value() {\n  return Class().value;\n}\n",
            "g": "using other::value;\n",
            "h": "int value() {\n  return 1;\n}\n",
        }.items():
            self.program(name, self.source(f"tests/unit/{name}.cpp", text))
        self.source("tests/unit/h.hpp", "int value();\n")
        expected = [["a", "b", "c", "d", "g", "h"], ["e", "f"]]
        self.assertEqual(self.batches(), [[f"tests/unit/{name}.cpp" for name in batch] for batch in expected])

    def test_what_a_header_declares_for_others_keeps_its_name(self):
        self.source("tests/unit/both.hpp", "#pragma once\nint shared();\nint entry();\n")
        include = '#include "unit/both.hpp"\n'
        for name, text in {
            "a": "int shared() {\n  return 1;\n}\nint entry() {\n  return 1;\n}\n",
            "b": "int entry() {\n  return shared();\n}\n",
        }.items():
            self.program(name, self.source(f"tests/unit/{name}.cpp", include + text), options=f"-I{self.folder}/tests")
        self.source("compile_commands.json", json.dumps(self.entries))
        ((together, *_),) = tidy.write_units(tidy.units_of(self.folder), self.folder)
        self.assertEqual(re.findall(r"#define (\w+)", together.read_text(encoding="utf-8")), ["entry", "entry"])
        subprocess.run([COMPILER, f"-I{self.folder}/tests", "-fsyntax-only", together], check=True)

    def test_what_is_compiled_alone_is_checked_alone_unless_it_is_a_benchmark(self):
        self.program("a", self.source("src/a.cpp"), self.source("src/b.cpp"))
        for name in ("src/c.cpp", "src/d.cu", "benchmarks/e.cpp", "benchmarks/f.cpp"):
            self.compiled(self.source(name))
        self.assertEqual(
            self.batches(), [["benchmarks/e.cpp", "benchmarks/f.cpp"], ["src/a.cpp", "src/b.cpp"], ["src/c.cpp"]]
        )

    def test_programs_that_define_the_same_are_one_file_for_the_compiler(self):
        self.source("tests/unit/own.hpp", "#pragma once\nstruct Own {\n  int value = 1;\n};\n")
        text = """#include <cstdio>
#include "own.hpp"
namespace {
int value = 2;
int twice(int value) {
  return 2 * value;
}
}
int main() {
  return std::printf("%d", twice(value));
}
"""
        for name in "abc":
            self.program(name, self.source(f"tests/unit/{name}.cpp", text))
        self.source("compile_commands.json", json.dumps(self.entries))
        ((together, *_),) = tidy.write_units(tidy.units_of(self.folder), self.folder)
        self.assertEqual(together.read_text(encoding="utf-8").count("#define main main"), 3)
        subprocess.run([COMPILER, "-fsyntax-only", together], check=True)

    def test_main_by_another_name_may_not_throw_either(self):
        settings = Path(ROOT, ".clang-tidy").read_text(encoding="utf-8")
        names = re.search(r"FunctionsThatShouldNotThrow\n *value: '(.*)'", settings)[1]
        self.assertEqual(names.split(","), [f"main{number}" for number in range(tidy.BATCH)])

    def test_what_is_found_in_a_source_that_another_includes_is_told(self):
        settings = Path(ROOT, ".clang-tidy").read_text(encoding="utf-8")
        expression = re.search(r"^HeaderFilterRegex: '(.*)'$", settings, re.MULTILINE)[1]
        for folder in ("src", "python", "examples", "tests", "benchmarks"):
            self.assertRegex(f"{ROOT}/{folder}/one/two.cpp", expression)


if __name__ == "__main__":
    unittest.main(argv=["tidy_test.py", "--verbose"])

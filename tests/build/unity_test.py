#!/usr/bin/env python3
"""Checks that all sources can be compiled as one file, as `pip install .` does with some of them:
unity_test.py ROOT COMPILER. Names in anonymous namespaces must differ, then."""

import json
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from configure import configure


def definitions(pyproject):
    """What pyproject.toml defines for CMake."""
    table = pyproject.split("[tool.scikit-build.cmake.define]\n")[1].split("\n[")[0]
    return [f"-D{name}={value}" for name, value in re.findall(r'^(\w+) = "(.*?)"', table, re.MULTILINE)]


def main():
    root, compiler = sys.argv[1:]
    defined = definitions(Path(root, "pyproject.toml").read_text(encoding="utf-8"))
    assert "-DCMAKE_UNITY_BUILD=ON" in defined, defined
    with tempfile.TemporaryDirectory() as build:
        configure(root, build, compiler, *defined, "-DCMAKE_UNITY_BUILD_BATCH_SIZE=0")
        commands = json.loads(Path(build, "compile_commands.json").read_text(encoding="utf-8"))
        units = [entry for entry in commands if "/Unity/" in entry["file"]]
        assert {Path(unit["file"]).parents[1].name for unit in units} >= {"tutti.dir"}, units
        # Of a build that is gone on with, scikit-build-core deletes this folder.
        assert not any(Path(unit["file"]).is_relative_to(Path(build, "CMakeFiles")) for unit in units)
        for unit in units:
            command = shlex.split(unit["command"])
            command[command.index("-o") : command.index("-o") + 2] = ["-fsyntax-only"]
            print("compiling", unit["file"], flush=True)
            if subprocess.run(command, cwd=unit["directory"]).returncode != 0:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Installs tutti from its build tree, moves it, and uses it as others do: through find_package
without CUDA, and through pkg-config with each compiler, in C++20 and C++23."""

import argparse
import os
import shlex
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

PROJECT = Path(__file__).parent / "project"
PACKAGE = Path(__file__).parents[2] / "python" / "tutti"


def run(*command, **options):
    """Runs a command, which must succeed; returns what it prints."""
    result = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )
    if result.returncode != 0:
        raise AssertionError(f"{shlex.join(result.args)} failed:\n{result.stdout}")
    return result.stdout


class Consumer(unittest.TestCase):
    arguments: argparse.Namespace

    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.work = Path(scratch.name)
        run("cmake", "--install", cls.arguments.build, "--prefix", cls.work / "first")
        cls.prefix = cls.work / "moved"
        (cls.work / "first").rename(cls.prefix)
        cls.libdir = cls.prefix / cls.arguments.libdir

    def pkg_config(self, *options):
        path = {**os.environ, "PKG_CONFIG_PATH": str(self.libdir / "pkgconfig")}
        return shlex.split(run(self.arguments.pkg_config, *options, "tutti", env=path))

    def test_find_package_without_cuda(self):
        build = self.work / "found"
        run(
            *("cmake", "-S", PROJECT, "-B", build, "-G", "Ninja"),
            f"-DCMAKE_CXX_COMPILER={self.arguments.compilers[0]}",
            f"-DCMAKE_PREFIX_PATH={self.prefix}",
            "-DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON",
        )
        run("cmake", "--build", build)
        run(build / "consumer")

    def test_the_launcher_is_a_program_of_its_own(self):
        program = self.prefix / "bin/tutti"
        self.assertNotIn("libmpi", run("ldd", program))
        run(program, "run", "-n", "2", "true", cwd=self.work)

    def test_the_python_package(self):
        if self.arguments.python is None:
            self.skipTest("the Python module was not built")
        place = self.work / "python"
        shutil.copytree(PACKAGE, place / "tutti", ignore=shutil.ignore_patterns("__pycache__"))
        run("cmake", "--install", self.arguments.build, "--prefix", place, "--component", "python")
        self.assertEqual(len(list(place.glob("tutti/_core.*.so"))), 1)
        code = ("import tutti; print(tutti.__file__); c = tutti.Communicator(0, 1, tutti.NcclIdHolder()); "
                "c.all_reduce(bytearray(8))")
        said = run(self.arguments.python, "-c", code, cwd=self.work,
                   env={**os.environ, "PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"})
        self.assertEqual(Path(said.split()[0]), place / "tutti/__init__.py")

    def test_pkg_config_names_what_a_consumer_needs(self):
        flags = self.pkg_config("--cflags", "--libs")
        self.assertIn(f"-L{self.libdir}", [os.path.normpath(flag) for flag in flags])
        for flag in flags:
            self.assertNotIn("mpi_cxx", flag)
            self.assertNotRegex(flag, "^-std=")
            self.assertNotRegex(flag, "^/.*cuda")

    def test_pkg_config_with_each_compiler(self):
        flags = self.pkg_config("--cflags", "--libs")
        for compiler in self.arguments.compilers:
            for standard in ("c++20", "c++2b"):
                with self.subTest(compiler=compiler, standard=standard):
                    program = self.work / "consumer"
                    options = [f"-std={standard}", f"-Wl,-rpath,{self.libdir}"]
                    run(compiler, PROJECT / "consumer.cpp", "-o", program, *flags, *options)
                    run(program)

    def test_each_header_alone(self):
        include = self.prefix / "include"
        headers = [str(header.relative_to(include)) for header in sorted(include.rglob("*.hpp"))]
        self.assertIn("tutti/communicator.hpp", headers)
        self.assertIn("tutti/ps/worker.hpp", headers)
        # By Clang, if it is there: GCC compiles the library's own sources.
        compiler = [self.arguments.compilers[-1], *self.pkg_config("--cflags")]
        options = ["-std=c++2b", "-fsyntax-only", "-x", "c++", "-Wall", "-Wextra", "-Werror"]
        for header in headers:
            with self.subTest(header=header):
                run(*compiler, *options, "-", input=f"#include <{header}>\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True)
    parser.add_argument("--libdir", required=True)
    parser.add_argument("--pkg-config", required=True)
    parser.add_argument("--python")
    parser.add_argument("--compilers", nargs="+", required=True)
    Consumer.arguments = parser.parse_args()
    unittest.main(argv=["consumer_test.py", "--verbose"])

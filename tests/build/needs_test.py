#!/usr/bin/env python3
"""Checks that a library is installed with what it needs alone: needs_test.py ROOT COMPILER."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from configure import configure

TESTS_ALONE = ("libgtest-dev", "python3-pytest", "python3-mpi4py")


class Needs(unittest.TestCase):
    root = compiler = ""

    def packages(self, group, python=None):
        """What install_deps.sh asks for on a bare machine that has no apt-get, and at most the program
        `python` for python3."""
        with tempfile.TemporaryDirectory() as folder:
            for tool in ("bash", "dirname", "id"):
                Path(folder, tool).symlink_to(shutil.which(tool))
            if python:
                Path(folder, "python3").write_text(python, encoding="utf-8")
                Path(folder, "python3").chmod(0o755)
            run = subprocess.run(
                ["bash", f"{self.root}/scripts/install_deps.sh", group],
                env={"PATH": folder},
                stderr=subprocess.PIPE,
                text=True,
            )
        self.assertEqual(run.returncode, 1, run.stderr)
        packages = run.stderr.split(": ")[-1].split()
        self.assertEqual(len(set(packages)), len(packages), packages)
        return packages

    def group_of(self, target):
        """The group whose packages `make target` installs."""
        output = subprocess.check_output(["make", "-n", "-C", self.root, target], text=True)
        return output.split("scripts/install_deps.sh ")[1].split()[0]

    def test_programs_install_nothing_for_tests(self):
        self.assertIn("libgtest-dev", self.packages(self.group_of("test")))
        for target in ("install", "mnist", "ctr"):
            packages = self.packages(self.group_of(target))
            self.assertIn("libopenmpi-dev", packages)
            for package in TESTS_ALONE:
                self.assertNotIn(package, packages, target)
        self.assertNotIn("libopenblas-dev", self.packages(self.group_of("install")))

    def test_pytorch_gets_an_environment(self):
        """Which Debian's Python does not make by itself."""
        python = '#!/bin/bash\ncase $2 in *ensurepip*) exit 1 ;; esac\necho "$0"\n'
        packages = self.packages(self.group_of("test-torch"), python)
        self.assertIn("python3-venv", packages)
        self.assertNotIn("python3-pytest", packages)  # that one has all else

    def test_as_a_folder_of_another_project_it_is_the_library_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "main.cpp").write_text("int main() {}\n", encoding="utf-8")
            Path(folder, "CMakeLists.txt").write_text(
                "cmake_minimum_required(VERSION 3.25)\n"
                "project(user LANGUAGES CXX)\n"
                f"add_subdirectory({self.root} tutti)\n"
                "add_executable(user main.cpp)\n"
                "target_link_libraries(user PRIVATE tutti::tutti)\n",
                encoding="utf-8",
            )
            configure(folder, f"{folder}/build", self.compiler, "-DTUTTI_CUDA=OFF")
            run = ("ninja", "-C", f"{folder}/build", "-t", "targets", "all")
            targets = subprocess.check_output(run, text=True)
        self.assertIn("libtutti.a:", targets)
        for other in ("unit_tests", "mnist_dist", "_core", "_bench"):
            self.assertNotIn(other, targets)

    def test_what_is_missing_is_left_out_and_said(self):
        missing = [
            f"-DCMAKE_DISABLE_FIND_PACKAGE_{package}=ON"
            for package in ("GTest", "Python3", "PkgConfig", "ZLIB", "pybind11")
        ]
        with tempfile.TemporaryDirectory() as build:
            output = configure(self.root, build, self.compiler, "-DTUTTI_CUDA=OFF", *missing)
        self.assertIn("No tests", output)
        self.assertIn("No example", output)
        self.assertIn("tutti: no CUDA", output)

    @unittest.skipUnless(shutil.which("nvcc"), "no nvcc")
    def test_the_python_build_is_for_the_gpus_that_are_there(self):
        names = ("PYTHON", "EXAMPLES", "TESTS", "BENCHMARKS")
        parts = [f"-DTUTTI_BUILD_{name}=OFF" for name in names]
        environment = {name: value for name, value in os.environ.items() if name != "CUDAARCHS"}
        with tempfile.TemporaryDirectory() as folder:
            smi = Path(folder, "nvidia-smi")
            for printed, expected in (("9.0\n8.6\n9.0", "90-real;86-real"), ("", "80")):
                smi.write_text(f"#!/bin/sh\necho '{printed}'\n", encoding="utf-8")
                smi.chmod(0o755)
                environment["PATH"] = f"{folder}:{os.environ['PATH']}"
                arguments = (self.root, f"{folder}/{expected[:2]}", self.compiler, "-DSKBUILD=ON", *parts)
                output = configure(*arguments, environment=environment)
                self.assertIn(f"CUDA for {expected},", output)


if __name__ == "__main__":
    Needs.root, Needs.compiler = sys.argv[1:]
    unittest.main(argv=["needs_test.py", "--verbose"])

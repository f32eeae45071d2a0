"""What gpu-check finds on a machine: GPUs, NVIDIA's libraries, Pythons, tools."""

import functools
import glob
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

NO_GPU = 77
PYTHONS = ("python3", "/usr/bin/python3", "/usr/local/bin/python3", "/opt/*/bin/python3",
           "/opt/*/.venv/bin/python3", "/root/*/bin/python3")
CUDA = ("/usr/local/cuda/lib64", "/usr/local/cuda-*/lib64", "/usr/lib/x86_64-linux-gnu",
        "/usr/lib64")
# CUDA has it in a folder of its own, and a link or a script beside its compiler.
SANITIZERS = ("/usr/local/cuda*/bin/compute-sanitizer",
              "/usr/local/cuda*/compute-sanitizer/compute-sanitizer",
              "/opt/nvidia/hpc_sdk/*/*/cuda/bin/compute-sanitizer")
OPEN_MPI = {
    "plm": "isolated", "pml": "ob1", "btl": "vader,self", "btl_vader_single_copy_mechanism": "none",
    "rmaps_base_oversubscribe": "1", "hwloc_base_binding_policy": "none",
}
# Keeps NCCL simple where ranks share a GPU, on top of what tutti sets there.
SHARED_GPU = {
    "CUDA_VISIBLE_DEVICES": "0", "NCCL_MAX_CTAS": "2", "NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple",
    "NCCL_NET_PLUGIN": "none", "NCCL_RAS_ENABLE": "0",
}


class NoGpu(Exception):
    """There is none, and why."""


def first(*patterns):
    """The first file that a pattern finds."""
    return next((path for pattern in patterns for path in sorted(glob.glob(pattern))), "")


def pythons():
    """The interpreters of this machine, the one that runs this first."""
    found = [sys.executable]
    for pattern in PYTHONS:
        found += [shutil.which(pattern) or ""] if "/" not in pattern else sorted(glob.glob(pattern))
    return list(dict.fromkeys(filter(None, found)))


def has_packages(python, version, packages):
    """Whether an interpreter is of a version, "3.12" or any if empty, and has packages."""
    code = ("import importlib.util as u, sys\n"
            "sys.exit(sys.argv[1] not in ('', '%d.%d' % sys.version_info[:2]) or "
            "any(u.find_spec(name) is None for name in sys.argv[2:]))")
    try:
        return subprocess.run([python, "-c", code, version, *packages], stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              timeout=20).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


class Machine:
    """This machine, and the bundle at `root` that gpu-check came in."""

    def __init__(self, root, folder):
        self._root, self._folder = Path(root), Path(folder)
        self._pythons = pythons()
        core = first(f"{root}/python/site/tutti/_core.cpython-3*.so")
        version = re.search(r"cpython-3(\d+)", core)
        self.python_version = f"3.{version[1]}" if version else ""
        folders = [path for path in sys.path if path] + [
            site for python in self._pythons
            for site in glob.glob(f"{Path(python).parent.parent}/lib*/python3*/*-packages")]
        self.nccl = os.environ.get("TUTTI_NCCL_LIB") or self._library(
            folders, "nccl", "libnccl.so.2")
        self.cublas = os.environ.get("TUTTI_CUBLAS_LIB") or self._library(
            folders, "cublas", "libcublas.so.13", "libcublas.so.12")
        self.gpus = []  # their names

    @staticmethod
    def _library(folders, package, *names):
        """Where a library of NVIDIA's lies: in CUDA's folders, or in a Python's."""
        places = [*CUDA, *(f"{folder}/nvidia/{part}/lib" for folder in folders
                           for part in (package, "cu13"))]
        return first(*(f"{place}/{name}" for name in names for place in places))

    def find_gpus(self):
        """Fills `gpus`. Throws NoGpu."""
        program = subprocess.run(
            [f"{self._root}/bin/gpu_kernels_bench", "--devices"], timeout=60, capture_output=True,
            text=True, env={**self.environment(ours=True, shared=False), "TUTTI_LOG": "info"})
        if program.returncode == NO_GPU:
            # The driver may be missing, or too old for this build.
            raise NoGpu("".join(line for line in program.stderr.splitlines(keepends=True)
                                if "no GPU is used" in line))
        if program.returncode != 0:
            raise RuntimeError(f"gpu_kernels_bench --devices: {program.stderr}")
        self.gpus = program.stdout.splitlines()

    @functools.lru_cache(maxsize=None)
    def find(self, what):
        """Where what a step needs is, or "" and why it is not there."""
        if what == "mnist":
            folder = f"{self._root}/data"
            return (folder, "") if Path(folder).is_dir() else ("", "the bundle has no MNIST")
        if what == "sanitizer":
            path = shutil.which("compute-sanitizer") or first(*SANITIZERS)
            return path, "" if path else "no compute-sanitizer on this machine"
        if what == "nvidia_smi":
            path = shutil.which("nvidia-smi") or first("/usr/local/nvidia/bin/nvidia-smi")
            return path, "" if path else "no nvidia-smi on this machine"
        if what == "any_torch":
            return self._python("", ["torch"])
        if not self.python_version:
            return "", "the bundle has no Python package"
        return self._python(self.python_version, [what, "pytest"])

    def _python(self, version, packages):
        for python in self._pythons:
            if has_packages(python, version, packages):
                return python, ""
        return "", f"no {f'Python {version}'.strip()} on this machine has {' and '.join(packages)}"

    def words(self):
        """What stands for the words in braces of a step's command, apart from what find() gives."""
        return {
            "bin": f"{self._root}/bin", "mpirun": f"{self._root}/ompi/usr/bin/orterun",
            "python_tests": f"{self._root}/python/tests", "logs": f"{self._folder}/logs",
            "scratch": f"{self._folder}/scratch",
        }

    def environment(self, ours, shared):
        """The variables of a program of ours, or of this machine's, whose ranks share GPU 0 or
        not. Waits end, and tell whom they waited for, before the step does."""
        prefix, arch = f"{self._root}/ompi/usr", "lib/x86_64-linux-gnu"
        pmix = f"{prefix}/{arch}/pmix2"
        libraries = [f"{self._root}/lib", *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        if ours and self.cublas:
            libraries.insert(1, str(Path(self.cublas).parent))  # of libcublasLt
        variables = {
            **os.environ,
            "LD_LIBRARY_PATH": ":".join(libraries),
            "OPAL_PREFIX": prefix, "PMIX_INSTALL_PREFIX": pmix,
            "PMIX_PKGLIBDIR": f"{pmix}/lib/pmix", "PMIX_PKGDATADIR": f"{pmix}/share/pmix",
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            **{f"OMPI_MCA_{name}": value for name, value in OPEN_MPI.items()},
            "NCCL_DEBUG": "WARN", "TUTTI_TIMEOUT": "20",
            "PYTHONPATH": f"{self._root}/python/site", "PYTHONDONTWRITEBYTECODE": "1",
            # Or a kernel that is loaded late may wait for those of ranks on the same GPU, which
            # wait for it.
            "CUDA_MODULE_LOADING": "EAGER",
            **(SHARED_GPU if shared else {}),
        }
        for name, path in (("TUTTI_NCCL_LIB", self.nccl), ("TUTTI_CUBLAS_LIB", self.cublas)):
            if path:
                variables[name] = path
        return variables

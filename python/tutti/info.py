"""python -m tutti.info: what this build of tutti has, and what it finds on this machine."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from typing import List, Tuple

import numpy

from tutti import _core, _identity, errors


def _backends() -> str:
    if "NCCL" in _core.backends:
        return _core.backends
    return (f"{_core.backends} (not NCCL, for GPUs: it is built in where nvcc and nccl.h are, Debian "
            "packages nvidia-cuda-toolkit and libnccl-dev)")


def _nccl() -> str:
    try:
        library = ctypes.CDLL("libnccl.so.2")
    except OSError:
        return "not found (GPUs need it: Debian package libnccl2, or pip install nvidia-nccl-cu12)"
    number = ctypes.c_int()
    library.ncclGetVersion(ctypes.byref(number))
    return f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"


def _gpus() -> str:
    usable = _core.gpu_count()
    program = shutil.which("nvidia-smi")
    if program is None:
        return f"{usable} can be used" if usable > 0 else "none: there is no NVIDIA driver"
    listing = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=30).stdout
    names = [line.split(" (UUID")[0] for line in listing.splitlines() if line.startswith("GPU")]
    if usable == len(names):
        return ", ".join(names) or "none"
    why = "" if usable > 0 else " (TUTTI_LOG=info says why)"
    return f"{', '.join(names) or 'not known'}; {usable} can be used{why}"


def _launcher() -> str:
    program = shutil.which("mpiexec")
    return program or "not found (Debian and Ubuntu: apt-get install openmpi-bin)"


def _transport() -> str:
    between = "; NCCL for arrays on GPUs" if "NCCL" in _core.backends and _core.gpu_count() > 0 else ""
    return _host_transport() + between


def _host_transport() -> str:
    try:
        launcher = _core.launched_by()
    except errors.InvalidArgument as error:
        return f"none: {error}"
    if launcher == "mpiexec" or launcher == "tutti run" and "TUTTI_TICKET" not in os.environ:
        return f"shared memory inside a host, MPI between hosts (started by {launcher})"
    if launcher:
        return f"shared memory (started by {launcher})"
    return "shared memory, among processes that hold the same NcclIdHolder (nothing launched this one)"


def _shared_memory() -> str:
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError as error:
        return f"not usable: {error}"
    return f"/dev/shm, {free / 2**20:.0f} MiB free"


def _package() -> str:
    return f"{_core.__version__} in {os.path.dirname(_core.__file__)}{_identity.hint()}"


def facts() -> List[Tuple[str, str]]:
    """What there is to say, as (name, value)."""
    return [
        ("tutti", _package()),
        ("Python, NumPy", f"{sys.version.split()[0]}, {numpy.__version__}"),
        ("backends built", _backends()),
        ("MPI library", _core.mpi_library().splitlines()[0].split(",")[0]),
        ("mpiexec", _launcher()),
        ("NCCL", _nccl()),
        ("GPUs", _gpus()),
        ("shared memory", _shared_memory()),
        ("transport", _transport()),
    ]


if __name__ == "__main__":
    for name, value in facts():
        print(f"{name + ':':<16} {value}")

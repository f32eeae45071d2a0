"""Compiles what tutti.torch has in C++, once for each PyTorch:

    python3 -m tutti.torch.build

DistributedDataParallel's buckets then lie in memory that the ranks of a host share, and PyTorch's
profiler shows the shapes of what travels. All else works without it. It wants a C++ compiler, which
the environment variable CXX may name, Python's headers, and PyTorch 2.8 or newer.
"""

# mypy: disable-error-code="misc,import,attr-defined"

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import List

import torch
from torch._C import _distributed_c10d

from tutti.errors import BackendUnavailable
from tutti.torch._compiled import SOURCE, where


def _command(output: str) -> List[str]:
    package = Path(torch.__file__).parent
    # What makes pybind11 take both for built alike, in versions of PyTorch that say so.
    alike = {name: getattr(torch._C, f"_PYBIND11_{name}", None)
             for name in ("COMPILER_TYPE", "STDLIB", "BUILD_ABI")}
    return [
        *shlex.split(os.environ.get("CXX") or "c++"), "-shared", "-fPIC", "-O2", "-std=c++20",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
        *(f'-DPYBIND11_{name}="{value}"' for name, value in alike.items() if value is not None),
        *(f"-I{folder}" for folder in (package / "include", package / "include/torch/csrc/api/include",
                                       sysconfig.get_paths()["include"])),
        str(SOURCE), f"-L{package / 'lib'}", "-ltorch_cpu", "-ltorch_python", "-lc10", "-o", output,
    ]


def build() -> Path:
    """Compiles it, and returns where it is now. BackendUnavailable, with what the compiler says,
    where that fails; what was there before stays then."""
    if not hasattr(_distributed_c10d.Backend, "allocate_tensor"):
        raise BackendUnavailable(f"PyTorch {torch.__version__} asks no backend for memory: this needs "
                                 "2.8 or newer")
    path = where()
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = os.path.join(folder, path.name)
        command = _command(made)
        try:
            subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           text=True)
        except OSError as error:
            raise BackendUnavailable(f"there is no C++ compiler {command[0]!r}: {error}; CXX may name "
                                     "another") from error
        except subprocess.CalledProcessError as error:
            raise BackendUnavailable(f"{shlex.join(command)} failed:\n{error.stdout}") from error
        os.replace(made, path)
    return path


if __name__ == "__main__":
    try:
        print(build())
    except BackendUnavailable as error:
        sys.exit(str(error))

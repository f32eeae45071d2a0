"""The part of tutti.torch that is in C++ and compiled against the PyTorch that is installed, where
`python3 -m tutti.torch.build` has done so."""

# mypy: disable-error-code="misc,import"

from __future__ import annotations

import hashlib
import importlib.util
import os
import sysconfig
import warnings
from pathlib import Path
from typing import Any, Optional

import torch

SOURCE = Path(__file__).with_name("_c10d.cpp")


def where() -> Path:
    """Where it is for this Python, this PyTorch and this source."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    source = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:8]
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    return cache / "tutti" / f"torch-{torch.__version__}-{source}" / f"_c10d{suffix}"


def load(path: Path) -> Optional[Any]:
    """The module that lies there, if one does; a warning if this machine cannot load it."""
    try:
        path.stat()
    except OSError:  # it is not there, or in a home that is not this user's
        return None
    spec = importlib.util.spec_from_file_location("tutti.torch._c10d", path)
    assert spec is not None and spec.loader is not None
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        warnings.warn(f"tutti.torch does without {path}, which this machine cannot load: {error}; "
                      "`python3 -m tutti.torch.build` makes it anew", RuntimeWarning, stacklevel=2)
        return None
    return module


c10d: Optional[Any] = load(where())
"""The compiled module, or None where there is none."""

"""Whether the package that is imported as `tutti` is this one: another on PyPI has that name."""

from __future__ import annotations

import sys
from typing import List

OURS = "tutti-distopt"


def owners() -> List[str]:
    """The distributions on the path that have installed a package `tutti`."""
    from importlib import metadata  # takes longer than all of this package

    found = set()
    for distribution in metadata.distributions():
        if any(file.as_posix() == "tutti/__init__.py" for file in distribution.files or ()):
            name = distribution.metadata["Name"]
            if name:  # of a damaged installation nothing may be left that says it
                found.add(name)
    return sorted(found)


def hint() -> str:
    """What to do about other distributions that have installed a `tutti`; empty without any."""
    others = [name for name in owners() if name != OURS]
    if not others:
        return ""
    return (f". Another distribution, {', '.join(others)}, has installed a package of that name: "
            f"pip uninstall {' '.join(others)} {OURS}, then install {OURS} alone")


def check() -> None:
    """Raises ImportError if another package has taken the place of this one's __init__.py."""
    package = sys.modules[__package__]
    if getattr(package, "__distribution__", None) == OURS:
        return
    where = getattr(package, "__file__", None) or list(package.__path__)[0]
    raise ImportError(f"{where} is not the package tutti of {OURS}, to which this module "
                      f"belongs{hint()}")


check()

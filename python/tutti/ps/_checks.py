"""Checks of arguments, whose errors name them."""

from __future__ import annotations

import os
from typing import Any, Tuple, Type

from tutti.errors import InvalidArgument


def check_kind(name: str, value: Any, kinds: Tuple[Type[Any], ...]) -> None:
    """Raises TypeError if an argument is none of these."""
    if not isinstance(value, kinds):
        *others, last = (kind.__name__ for kind in kinds)
        wanted = f"{', '.join(others)} or {last}" if others else last
        raise TypeError(f"{name} is {value!r}, but must be of {wanted}")


def whole(name: str, value: Any, least: int, most: int) -> int:
    """An argument that is a whole number, from least to most."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} is {value!r}, but must be a whole number")
    if not least <= int(value) <= most:
        raise InvalidArgument(f"{name} is {value}, but must be from {least} to {most}")
    return int(value)


def path(name: str, value: Any) -> str:
    """An argument that is the path of a file or folder."""
    check_kind(name, value, (str, os.PathLike))
    text = os.fspath(value)
    if not isinstance(text, str) or not text:
        raise InvalidArgument(f"{name} is {value!r}, but must be a path that is text, and not empty")
    return text

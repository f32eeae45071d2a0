"""Checks of arguments, whose errors name them."""

from __future__ import annotations

import os
from typing import Any, Iterable, List, Sequence, Tuple, Type

import numpy

from tutti.errors import InvalidArgument


def check_kind(name: str, value: Any, kinds: Tuple[Type[Any], ...]) -> None:
    """Raises TypeError if an argument is none of these."""
    if not isinstance(value, kinds):
        *others, last = (kind.__name__ for kind in kinds)
        wanted = f"{', '.join(others)} or {last}" if others else last
        raise TypeError(f"{name} is {value!r}, but must be of {wanted}")


def items(name: str, value: Any, kinds: Tuple[Type[Any], ...]) -> List[Any]:
    """An argument that is an iterable of these."""
    if not isinstance(value, Iterable) or isinstance(value, str):
        names = " and ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"{name} is {value!r}, but must be an iterable of {names}")
    found = list(value)
    for number, one in enumerate(found):
        check_kind(f"{name}[{number}]", one, kinds)
    return found


def flag(name: str, value: Any) -> bool:
    """An argument that is True or False."""
    if not (isinstance(value, (bool, int, numpy.bool_)) and value in (0, 1)):
        raise InvalidArgument(f"{name} is {value!r}, but must be True or False")
    return bool(value)


def one_of(name: str, value: Any, choices: Sequence[str]) -> str:
    """An argument that is one of these words."""
    if not isinstance(value, str) or value not in choices:
        *others, last = (repr(choice) for choice in choices)
        raise InvalidArgument(f"{name} is {value!r}, but must be {', '.join(others)} or {last}")
    return value


def number(name: str, value: Any) -> None:
    """Raises TypeError if an argument is no number."""
    if isinstance(value, (bool, str)) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} is {value!r}, but must be a number")


def function(name: str, value: Any) -> None:
    """Raises TypeError if an argument cannot be called, nor is None."""
    if value is not None and not callable(value):
        raise TypeError(f"{name} is {value!r}, but must be a function, or None")


def sized(name: str, value: Any) -> None:
    """Raises TypeError if an argument has no length."""
    if not hasattr(value, "__len__"):
        raise TypeError(f"{name} is {value!r}, but must have a length")


def seconds(name: str, value: Any) -> None:
    """Raises InvalidArgument or TypeError if an argument is no time to wait, nor None."""
    if value is None:
        return
    number(name, value)
    if not float(value) > 0:
        raise InvalidArgument(f"{name} is {value}, but must be above 0")


def endpoints(name: str, value: Any) -> List[str]:
    """An argument that is a text of endpoints with commas between them."""
    check_kind(name, value, (str,))
    found = [endpoint.strip() for endpoint in value.split(",")]
    if not all(found):
        raise InvalidArgument(f"{name} is {value!r}, but must be 'host:port', with commas between "
                              "several")
    return found


def integer(name: str, value: Any) -> int:
    """An argument that is a whole number."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} is {value!r}, but must be a whole number")
    return int(value)


def whole(name: str, value: Any, least: int, most: int) -> int:
    """An argument that is a whole number, from least to most."""
    integer(name, value)
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

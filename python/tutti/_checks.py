"""Checks of arguments, whose errors name them."""

from __future__ import annotations

import operator
import os
from typing import Any, Iterable, List, Mapping, Sequence, Tuple, Type

from tutti.errors import InvalidArgument

_MOST = 2**63 - 1


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


def sliceable(name: str, value: Any) -> Any:
    """An argument that is a sequence, such as a list or an array, and no text."""
    if isinstance(value, (str, bytes, Mapping)) or not (
            hasattr(value, "__len__") and hasattr(value, "__getitem__")):
        raise TypeError(f"{name} is {value!r}, but must be a list, or another sequence")
    return value


def _plain(value: Any) -> Any:
    """A number of NumPy's, or of an array without dimensions, as Python has it."""
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value


def flag(name: str, value: Any) -> bool:
    """An argument that is True or False."""
    found = _plain(value)
    if not (isinstance(found, int) and found in (0, 1)):
        raise InvalidArgument(f"{name} is {value!r}, but must be True or False")
    return bool(found)


def one_of(name: str, value: Any, choices: Sequence[str]) -> str:
    """An argument that is one of these words."""
    if not isinstance(value, str) or value not in choices:
        *others, last = (repr(choice) for choice in choices)
        raise InvalidArgument(f"{name} is {value!r}, but must be {', '.join(others)} or {last}")
    return value


def number(name: str, value: Any) -> float:
    """An argument that is a number."""
    found = _plain(value)
    try:
        if not isinstance(found, (bool, str, complex)) and (
                hasattr(found, "__float__") or hasattr(found, "__index__")):
            return float(found)
    except (TypeError, ValueError, RuntimeError):  # several numbers, by NumPy and PyTorch
        pass
    except OverflowError as error:
        raise InvalidArgument(f"{name} is {value!r}, but must be a number that a float holds") from error
    raise TypeError(f"{name} is {value!r}, but must be a number")


def function(name: str, value: Any) -> None:
    """Raises TypeError if an argument cannot be called, nor is None."""
    if value is not None and not callable(value):
        raise TypeError(f"{name} is {value!r}, but must be a function, or None")


def sized(name: str, value: Any) -> None:
    """Raises TypeError if an argument has no length."""
    if not hasattr(value, "__len__"):
        raise TypeError(f"{name} is {value!r}, but must have a length")


def seconds(name: str, value: Any) -> float:
    """An argument that is a time to wait."""
    found = number(name, value)
    if not 0 < found <= 1e9:
        raise InvalidArgument(f"{name} is {value}, but must be a number of seconds above 0, up to 1e9")
    return found


def endpoints(name: str, value: Any) -> List[str]:
    """An argument that is a text of endpoints with commas between them."""
    found = [endpoint.strip() for endpoint in text(name, value).split(",")]
    if not all(found):
        raise InvalidArgument(f"{name} is {value!r}, but must be 'host:port', with commas between "
                              "several")
    return found


def integer(name: str, value: Any) -> int:
    """An argument that is a whole number."""
    found = _plain(value)
    try:
        if not isinstance(found, bool):
            return operator.index(found)
    except TypeError:  # an array of fractions has __index__, too, and refuses when it is called
        pass
    raise TypeError(f"{name} is {value!r}, but must be a whole number")


def whole(name: str, value: Any, least: int, most: int = _MOST) -> int:
    """An argument that is a whole number, from least to most."""
    found = integer(name, value)
    if not least <= found <= most:
        limit = "" if most == _MOST else f" to {most}"
        raise InvalidArgument(f"{name} is {value}, but must be a whole number from {least}{limit}")
    return found


def text(name: str, value: Any) -> str:
    """An argument that is text, which has a form in UTF-8."""
    check_kind(name, value, (str,))
    found: str = value
    try:
        found.encode()
    except UnicodeError as error:
        raise InvalidArgument(f"{name} is {value!r}, but must be valid Unicode, without "
                              "half of a surrogate pair") from error
    return found


def path(name: str, value: Any) -> str:
    """An argument that is the path of a file or folder."""
    check_kind(name, value, (str, os.PathLike))
    found = os.fspath(value)
    if not isinstance(found, str) or not found:
        raise InvalidArgument(f"{name} is {value!r}, but must be a path that is text, and not empty")
    return text(name, found)

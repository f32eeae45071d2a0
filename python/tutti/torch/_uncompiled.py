"""What torch.compile() is to leave as it is."""

# mypy: disable-error-code="misc,import"

from __future__ import annotations

import sys
import types
from typing import Any, Callable, Iterator, Optional

import torch


def leave_alone(package: str) -> None:
    """Has torch.compile() run the functions of a package as they are: PyTorch's C++ calls some in the
    middle of what it compiles, such as DistributedDataParallel.forward(). torch.compiler.disable() says
    so, too, but takes time in each call, and seconds in an import."""
    skip = _how_to_skip()
    if skip is None:
        return
    for name, module in list(sys.modules.items()):
        if name == package or name.startswith(package + "."):
            for thing in vars(module).values():
                if getattr(thing, "__module__", None) == name:
                    for code in _codes_of(thing):
                        skip(code)


def _how_to_skip() -> Optional[Callable[[types.CodeType], Any]]:
    """Names that versions of PyTorch have for it."""
    frames = torch._C._dynamo.eval_frame
    if hasattr(frames, "skip_code"):
        named: Callable[[types.CodeType], Any] = frames.skip_code
        return named
    if not hasattr(frames, "set_code_exec_strategy"):
        return None
    skipped = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
    return lambda code: frames.set_code_exec_strategy(code, skipped)


def _codes_of(thing: Any) -> Iterator[types.CodeType]:
    """Of a function, with those inside it; of the methods of a class; of a property."""
    if isinstance(thing, types.CodeType):
        yield thing
        parts: Any = thing.co_consts
    elif isinstance(thing, types.FunctionType):
        parts = [thing.__code__]
    elif isinstance(thing, property):
        parts = [thing.fget]
    elif isinstance(thing, type):
        parts = [part for part in vars(thing).values() if not isinstance(part, type)]
    else:
        return
    for part in parts:
        yield from _codes_of(part)

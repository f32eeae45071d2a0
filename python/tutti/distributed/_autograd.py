"""Communication as a part of PyTorch's graphs: its gradients travel the other way."""

from __future__ import annotations

import functools
import importlib
import threading
from types import TracebackType
from typing import Any, Callable, Iterable, List, Optional, Sequence, Type, Union

from tutti import _torch
from tutti.distributed import _arrays
from tutti.errors import InvalidArgument

Forward = Callable[[Any], Any]
Backward = Callable[[Any], Optional[Any]]


def is_differentiated(array: Any) -> bool:
    """Whether gradients of what is computed from this will be asked for."""
    if not _arrays.is_tensor(array) or not array.requires_grad:
        return False
    return bool(_torch_module().is_grad_enabled())


def _torch_module() -> Any:
    return importlib.import_module("torch")


@functools.lru_cache(maxsize=None)
def _node() -> Any:
    """The kind of node that all communication has in a graph."""
    torch = _torch_module()

    def forward(context: Any, tensor: Any, act: Forward, act_back: Backward) -> Any:
        context.act_back = act_back
        return act(tensor)

    def backward(context: Any, gradient: Any) -> Any:
        return context.act_back(gradient), None, None

    members = {"forward": staticmethod(forward),
               "backward": staticmethod(torch.autograd.function.once_differentiable(backward))}
    return type("Communication", (torch.autograd.Function,), members)


def apply(tensor: Any, forward: Forward, backward: Backward) -> Any:
    """forward(tensor), whose gradient `backward` turns into that of `tensor`."""
    return _node().apply(tensor, forward, backward)


def source(forward: Callable[[], Any], backward: Backward) -> Any:
    """What other ranks have made: forward(), whose gradient is given to `backward`."""
    leaf = _torch_module().zeros((), requires_grad=True)

    def pass_back(gradient: Any) -> None:
        backward(gradient)

    return apply(leaf, lambda _: forward(), pass_back)


def _zero_of(tensor: Any, forward: Callable[[Any], Any], backward: Callable[[], Any]) -> Any:
    """For what leaves this rank: a zero, whose backward pass asks `backward` for the gradient."""

    def leave(value: Any) -> Any:
        forward(value)
        return value.new_zeros(())

    return apply(tensor, leave, lambda _: backward())


class Recording:
    """What a rank has sent and received between the beginning of its forward pass and the end of
    its backward pass."""

    def __init__(self) -> None:
        self.sinks: List[Any] = []
        self.unanswered: List[Callable[[], None]] = []  # each says that there is no gradient

    def answer(self) -> None:
        """Tells the ranks whose values had no part in the backward pass, which wait for that."""
        for say in self.unanswered:
            say()
        self.unanswered.clear()


class _Recordings(threading.local):
    """Of a thread: those that have begun and not ended."""

    def __init__(self) -> None:
        self.open: List[Recording] = []


_recordings = _Recordings()


def recording() -> Optional[Recording]:
    """The innermost of this thread."""
    return _recordings.open[-1] if _recordings.open else None


def leave(tensor: Any, forward: Callable[[Any], Any], backward: Callable[[], Any]) -> Any:
    """Has forward(tensor) take a value to another rank. The backward pass of the GradManager around
    this, or of the zero that is returned, asks `backward` for its gradient."""
    zero = _zero_of(tensor, forward, backward)
    record = recording()
    if record is not None:
        record.sinks.append(zero)
    return zero


def arrive(value: Any, send_back: Callable[[Optional[Any]], None]) -> Any:
    """A value of another rank, which waits for send_back(its gradient), or None if it has none."""
    record = recording()
    if not _torch_module().is_grad_enabled():
        send_back(None)
        return value
    answers = [] if record is None else record.unanswered
    has_none = False

    def say_none() -> None:
        nonlocal has_none
        has_none = True
        send_back(None)

    def backward(gradient: Any) -> None:
        if has_none:
            raise InvalidArgument(
                "a value of another rank has a part in this backward pass, but had none in the one "
                "before, which has told that rank that there is no gradient: call gm.backward() "
                "once with a list of all losses")
        if say_none in answers:
            answers.remove(say_none)
        send_back(gradient)

    answers.append(say_none)
    return source(lambda: value, backward)


class _Chain:
    """Callbacks, of which each gets what the one before has made of the gradient."""

    def __init__(self, callbacks: Sequence[Callable[..., Any]]) -> None:
        self._callbacks = callbacks
        for index, callback in enumerate(callbacks[:-1]):
            if hasattr(callback, "flush"):
                raise InvalidArgument(f"callbacks[{index}] sums gradients until the pass ends, and "
                                      "must be the last")

    def __call__(self, tensor: Any, gradient: Any) -> Any:
        for callback in self._callbacks:
            replaced = callback(tensor, gradient)
            gradient = gradient if replaced is None else replaced
        return gradient

    def number(self, tensors: Sequence[Any]) -> None:
        """Tells a callback that sums gradients in which order the ranks name the tensors."""
        self._tell_last("number", tensors)

    def flush(self) -> None:
        """The pass has ended."""
        self._tell_last("flush")

    def give_up(self) -> None:
        """The pass has failed."""
        self._tell_last("give_up")

    def _tell_last(self, name: str, *arguments: Any) -> None:
        if self._callbacks and hasattr(self._callbacks[-1], name):
            getattr(self._callbacks[-1], name)(*arguments)


class GradManager:
    """MegEngine's, on PyTorch's graphs: backward passes that go on in other ranks.

        gm = GradManager().attach(net.parameters(), callbacks=[make_allreduce_cb("mean")])
        with gm:
            gm.backward(loss(net(x), y))

    What is sent to another rank inside `with` gets its gradient from there in gm.backward().
    Where ranks need nothing of each other's graphs, it is not needed: see make_allreduce_cb().
    """

    def __init__(self) -> None:
        self._tensors: List[Any] = []
        self._hooks: List[_torch.GradientHooks] = []
        self._recording: Optional[Recording] = None

    def attach(
        self,
        tensors: Union[Any, Iterable[Any]],
        callbacks: Optional[Union[Callable[..., Any], Sequence[Callable[..., Any]]]] = None,
    ) -> GradManager:
        """Has callback(tensor, gradient) called for each tensor as soon as its gradient is
        complete, one callback after the other; what it returns, if that is not None, is the
        gradient from then on. One of make_allreduce_cb() is the last: what it returns is a sum only
        when the pass has ended. Local; returns self."""
        found = [tensors] if _arrays.is_tensor(tensors) else list(tensors)
        for index, tensor in enumerate(found):
            if not _arrays.is_tensor(tensor):
                raise TypeError(f"tensors[{index}] is a {type(tensor).__name__}, but must be a "
                                "torch.Tensor")
        listed = list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]
        chain = _Chain([callback for callback in listed if callback is not None])
        chain.number(found)
        self._tensors += found
        self._hooks.append(_torch.GradientHooks(found, chain))
        return self

    def attached_tensors(self) -> List[Any]:
        """Those given to attach(), in that order."""
        return list(self._tensors)

    def record(self) -> None:
        """Begins a recording, as `with` does."""
        if self._recording is not None:
            raise InvalidArgument("the GradManager records already")
        self._recording = Recording()
        _recordings.open.append(self._recording)

    def release(self) -> None:
        """Ends the recording, as the end of `with` does; what it holds is forgotten."""
        if self._recording is not None:
            self._recording.answer()
            self._stop()

    def _stop(self) -> None:
        if self._recording is not None:
            _recordings.open.remove(self._recording)
            self._recording = None

    def __enter__(self) -> GradManager:
        self.record()
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        if error is None:
            self.release()
        else:  # the other ranks are told by what ends this one
            self._stop()

    def backward(self, y: Any = None, dy: Any = None) -> None:
        """The backward pass from `y`, a tensor or a list of some (None and [] for none), with the
        gradients `dy` (ones, unless they are given), and from everything that this recording has
        sent to other ranks. Blocks until these have sent its gradients. What has come from other
        ranks and has no part in it has no gradient: of several passes the first uses all."""
        torch = _torch_module()
        roots = [] if y is None else [y] if _arrays.is_tensor(y) else list(y)
        given = [dy] if _arrays.is_tensor(dy) else list(dy or [])
        if given and len(given) != len(roots):
            raise InvalidArgument(f"dy has {len(given)} tensors, but y {len(roots)}")
        gradients = given or [torch.ones_like(root) for root in roots]
        record = self._recording or Recording()
        roots += record.sinks
        gradients += [torch.zeros_like(zero) for zero in record.sinks]
        record.sinks = []
        try:
            if roots:
                torch.autograd.backward(roots, gradients)
        except BaseException:
            for hooks in self._hooks:
                hooks.give_up()
            raise
        record.answer()

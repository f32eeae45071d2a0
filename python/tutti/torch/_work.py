"""What a collective of PyTorch's returns: its Work, with a future."""

# mypy: disable-error-code="misc,import"

from __future__ import annotations

import threading
from collections import deque
from datetime import timedelta
from typing import Any, Callable, Deque, List, Optional, Sequence

import torch
from torch._C._distributed_c10d import AllreduceOptions
from torch.distributed import Work

from tutti.errors import CommunicationError, DeadlineExceeded
from tutti.torch import _gpu
from tutti.torch._compiled import c10d

SHOWN_AS = "tutti"  # what PyTorch's profiler calls the backend

# Where options say whether the caller goes on meanwhile, C++ keeps a Work of Python's alive.
TELLS_ASYNC = hasattr(AllreduceOptions, "asyncOp")

# Before, a Work that C++ holds outlived its Python half, whose wait() was then the base's, which
# never ends. So the latest that C++ may have asked for are kept: DistributedDataParallel waits for
# few at a time.
_latest: Deque[Work] = deque(maxlen=64)


def start(lane: Any, tensors: List[torch.Tensor], call: Callable[[], Any],
          inputs: Sequence[torch.Tensor] = ()) -> TuttiWork:
    """Has `call` run on a lane; a Work that ends with it, and whose future has `tensors`. These and
    `inputs` tell the GPU."""
    work = TuttiWork(tensors)
    placed = _gpu.later([*tensors, *inputs], call)
    lane.give(lambda: work.run(placed), work.end_as_run)
    return work


def _begin(name: str, tensors: List[torch.Tensor]) -> Callable[[], None]:
    """Shows PyTorch's profiler an operation, until what this returns is called on any thread."""
    if c10d is not None:
        compiled: Callable[[], None] = c10d.show(name, tensors)
        return compiled
    record = torch.autograd.profiler.record_function(name)
    record.__enter__()
    ended: Any = torch.futures.Future()
    record._call_end_callbacks_on_future(ended)  # which knows this thread's profiler on any other

    def end() -> None:
        ended.set_result(None)

    return end


def shown(name: str, tensors: List[torch.Tensor], call: Callable[..., Any]) -> Callable[..., Any]:
    """`call` as PyTorch's profiler sees it, if one looks on: from now until it has ended, on
    whatever thread, with the shapes of `tensors`."""
    if not torch.autograd._profiler_enabled():
        return call
    end = _begin(f"{SHOWN_AS}:{name}", tensors)

    def run(*arguments: Any) -> Any:
        try:
            return call(*arguments)
        finally:
            end()

    return run


def keep(work: TuttiWork) -> TuttiWork:
    """Keeps the Work of a call that C++ may have made, where it does not do so itself."""
    if not TELLS_ASYNC:
        _latest.append(work)
    return work


class TuttiWork(Work):
    """An operation that may be under way. wait() raises what it has raised: tutti.PeerLost,
    tutti.MismatchError and so on. is_message: what ends it serves other messages, too, for which
    callbacks of its futures may wait: they have a thread of their own."""

    def __init__(self, tensors: List[torch.Tensor], is_message: bool = False) -> None:
        super().__init__()
        self._tensors = tensors
        self._is_message = is_message
        self.sender: Optional[Callable[[], int]] = None  # of a receive: the rank that it came from
        self._lock = threading.Lock()
        self._gate = threading.Lock()  # held until the operation has ended
        self._gate.acquire()
        self._ended = False
        self._raised: Optional[BaseException] = None
        self._error: Optional[BaseException] = None
        self._begins: List[Any] = []  # what the futures of get_future() wait for

    def run(self, call: Callable[[], Any]) -> None:
        """Does it, and keeps what it raises for end_as_run()."""
        try:
            call()
        except BaseException as error:  # everything: somebody waits
            self._raised = error

    def end_as_run(self) -> None:
        """Ends with what run() has kept."""
        self.end(self._raised)

    def end(self, error: Optional[BaseException]) -> None:
        """It has ended, by `error` if there is one: wakes those who wait, and sets the futures."""
        with self._lock:
            self._error = error
            self._ended = True
            begins, self._begins = self._begins, []
        self._gate.release()
        if begins and self._is_message:
            threading.Thread(target=self._call_back, args=(begins,), name="tutti callbacks",
                             daemon=True).start()
        else:
            _set(begins)

    def _call_back(self, begins: List[Any]) -> None:
        """On a thread of its own."""
        device = _gpu.device_of(self._tensors)
        if device is not None:
            torch.cuda.set_device(device)  # which callbacks find
        _set(begins)

    def wait(self, timeout: Optional[timedelta] = None) -> bool:
        """Waits until it has ended, at most `timeout`; zero or none: as long as the group's
        operations may take. DeadlineExceeded leaves it under way."""
        if not self._ended:
            seconds = timeout.total_seconds() if timeout else 0.0
            if not self._gate.acquire(timeout=seconds if seconds > 0 else -1):
                raise DeadlineExceeded(f"an operation has not ended within {seconds:g} s")
            self._gate.release()
        if self._error is not None:
            raise self._error
        return True

    synchronize = wait

    def is_completed(self) -> bool:
        """Whether it has ended, be it by an error. Does not wait."""
        return self._ended

    def is_success(self) -> bool:
        """Whether it has ended without an error. Does not wait."""
        return self._ended and self._error is None

    def exception(self) -> Optional[BaseException]:
        """What has ended it; None where nothing has, and while it is under way."""
        return self._error

    def result(self) -> List[torch.Tensor]:
        """Waits, and returns the tensors that it has written."""
        self.wait()
        return self._tensors

    def source_rank(self) -> int:
        """Of a receive that has ended: the rank in the group whose message it was."""
        if self.sender is None:
            raise CommunicationError("only what receives has a source")
        return self.sender()

    _source_rank = source_rank

    def get_future(self) -> Any:
        """A torch.futures.Future of the list of tensors."""
        gpus = {tensor.device for tensor in self._tensors if tensor.is_cuda}
        begin: Any = torch.futures.Future(devices=list(gpus))  # of the values of what follows, too
        future = begin.then(self._value)
        with self._lock:
            if not self._ended:
                self._begins.append(begin)
                return future
        begin.set_result(None)
        return future

    def _value(self, _: Any) -> List[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return self._tensors


def _set(futures: List[Any]) -> None:
    for future in futures:
        future.set_result(None)


def ended() -> TuttiWork:
    """A Work that has nothing left to do."""
    work = TuttiWork([])
    work.end(None)
    return work

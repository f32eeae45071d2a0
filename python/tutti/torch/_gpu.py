"""Where on a GPU an operation runs: after what its caller's stream was given."""

# mypy: disable-error-code="misc,import"

from __future__ import annotations

import functools
import threading
from typing import Any, Callable, Iterable, Optional

import torch


def device_of(tensors: Iterable[torch.Tensor]) -> Optional[torch.device]:
    """The GPU that they are on; None if they are in memory of the CPU."""
    return next((tensor.device for tensor in tensors if tensor.is_cuda), None)


@functools.lru_cache(maxsize=None)
def _stream(device: torch.device, use: str) -> Any:
    return torch.cuda.Stream(device)


class Later:
    """Where something runs, on a thread of tutti's or the maker's own: on a stream of tutti's for each
    GPU and `use`, after what the maker's stream was given so far."""

    def __init__(self, device: torch.device, use: str) -> None:
        self._device, self._use = device, use
        self._given = torch.cuda.current_stream(device).record_event()
        self._maker = threading.get_ident()

    def run(self, call: Callable[[], Any]) -> None:
        """Calls it, and waits until the GPU has done what it was given."""
        if threading.get_ident() == self._maker:
            with torch.cuda.device(self._device):
                self._run(call)
            return
        # For good, since to go back would be to GPU 0, where this process may have nothing.
        torch.cuda.set_device(self._device)
        self._run(call)

    def _run(self, call: Callable[[], Any]) -> None:
        stream = _stream(self._device, self._use)
        with torch.cuda.stream(stream):
            stream.wait_event(self._given)
            call()
            stream.synchronize()


def later(tensors: Iterable[torch.Tensor], call: Callable[[], Any],
          use: str = "collectives") -> Callable[[], Any]:
    """`call`, to be made by a thread of tutti's; on tensors of a GPU as Later.run() has it."""
    device = device_of(tensors)
    if device is None:
        return call
    return functools.partial(Later(device, use).run, call)


def here(tensors: Iterable[torch.Tensor], call: Callable[[], Any]) -> None:
    """Calls it with the GPU of the tensors as the current one: PyTorch gives out no tensor of
    another."""
    device = device_of(tensors)
    if device is None:
        call()
        return
    with torch.cuda.device(device):
        call()

"""Batches as PyTorch tensors, on their device before they are asked for."""

from __future__ import annotations

import importlib
from typing import Any, Dict, Iterator, Optional

import numpy

from tutti.data.collate import map_leaves
from tutti.data.loader import DataLoader
from tutti.data.sampler import END, Step


class Preloader:
    """A DataLoader's batches with PyTorch tensors instead of arrays, one batch ahead.

    loader: whose batches. device: PyTorch's name of where the tensors are to be, or a torch.device.
    On a GPU the next batch is copied, from pinned memory and on a stream of its own, while the
    current one is worked with; PyTorch's current stream waits for the copy. On the CPU tensors
    share the arrays' memory. Raises ImportError without PyTorch, and RuntimeError if PyTorch does
    not know the device.
    """

    def __init__(self, loader: DataLoader, device: Any) -> None:
        self._torch: Any = importlib.import_module("torch")  # which has types of its own
        self.loader = loader
        self.device = self._torch.device(device)

    def __len__(self) -> int:
        """The number of batches of an epoch."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """The batches of an epoch, or of what is left of it after load_state_dict()."""
        copier = _Copier(self._torch, self.device)
        ahead: Optional[Step] = None
        for step in self.loader.steps():
            if step.batch is not END:
                step = Step(copier.begin(step.batch), step.place)
            if ahead is not None:
                self.loader.arrive(ahead.place)
                yield copier.end(ahead.batch)
            ahead = step
        if ahead is not None:
            self.loader.arrive(ahead.place)  # the end of the epoch

    def state_dict(self) -> Dict[str, Any]:
        """Where the iteration stands: after the batch that it gave last."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Goes on from a state_dict(), as DataLoader.load_state_dict()."""
        self.loader.load_state_dict(state)


class _Copier:
    """Copies batches to a device, on a stream of its own if that is a GPU."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch, self._device = torch, device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def begin(self, batch: Any) -> Any:
        """Begins to copy a batch; what end() takes."""
        if self._stream is None:
            return map_leaves(batch, numpy.ndarray, self._tensor), None
        with self._torch.cuda.stream(self._stream):
            tensors = map_leaves(batch, numpy.ndarray, lambda array: self._tensor(array, pin=True))
            return tensors, self._stream.record_event()

    def _tensor(self, array: Any, pin: bool = False) -> Any:
        tensor = self._torch.from_numpy(array)
        if pin:
            tensor = tensor.pin_memory()
        return tensor.to(self._device, non_blocking=True)

    def end(self, begun: Any) -> Any:
        """The tensors of a batch, which the current stream may use."""
        tensors, copied = begun
        if copied is not None:
            current = self._torch.cuda.current_stream(self._device)
            current.wait_event(copied)
            # Their memory is the copying stream's, which must not use it again before this one.
            map_leaves(tensors, self._torch.Tensor, lambda tensor: tensor.record_stream(current))
        return tensors

"""Arrays that travel between two ranks, each with a description of itself.

A rank takes what it wants in whatever order: what another one has sent before is kept for later.
"""

from __future__ import annotations

import enum
from collections import defaultdict, deque
from typing import Any, DefaultDict, Deque, Dict, Optional, Tuple

from tutti import _core
from tutti.distributed import _arrays
from tutti.distributed._arrays import Description

# Of messages on a communicator that its owner may use for messages of their own. Those between GPUs
# have none.
_TAG = 0x7475


class Kind(enum.IntEnum):
    """What a message holds."""

    VALUE = 0
    GRADIENT = 1  # of the value with the same number, which went the other way
    NO_GRADIENT = 2  # that value was not used


class Parcel:
    """What has arrived. array: None where there is no gradient."""

    def __init__(self, kind: Kind, description: Description, array: Optional[Any]) -> None:
        self.kind = kind
        self.description = description
        self.array = array


class Mail:
    """Messages between this rank and single others, over one communicator.

    What is sent waits on a stream until the other rank has taken it, and its sender goes on. A
    communicator has one order of sends, so what has not been taken holds up what was sent later, to
    other ranks as well. Errors of sending come up in the next call of send() or finish().
    """

    def __init__(self, communicator: _core.Communicator) -> None:
        self._communicator = communicator
        self._stream: Optional[_core.Stream] = None
        self._under_way: Deque[_core.Event] = deque()  # in the order of sending
        self._sent: DefaultDict[int, int] = defaultdict(int)
        self._received: DefaultDict[int, int] = defaultdict(int)
        self._kept: Dict[Tuple[int, bool, int], Parcel] = {}

    def next_to(self, rank: int) -> int:
        """The number of the next value for a rank."""
        self._sent[rank] += 1
        return self._sent[rank]

    def next_from(self, rank: int) -> int:
        """The number of the next value of a rank."""
        self._received[rank] += 1
        return self._received[rank]

    def send(
        self, rank: int, kind: Kind, number: int, array: Optional[Any], requires_grad: bool = False
    ) -> None:
        """Starts to send a copy of an array, or that there is none."""
        if array is None:
            description = Description("float32", (), False, False, False)
        else:
            description = Description.of(array, "inp", requires_grad)
        while self._under_way and self._under_way[0].ready():
            self._under_way.popleft().wait()
        fields = description.pack(kind, number)
        if description.on_gpu:  # in the order of what the GPU does, and not copied
            self._communicator.send(fields, rank, _TAG)
            self._communicator.send(_arrays.contiguous(array), rank)
            return
        if self._stream is None:
            self._stream = _core.Stream()
        parts = [fields] if array is None else [fields, _arrays.copy_of(array)]
        self._under_way += [self._communicator.send(part, rank, _TAG, stream=self._stream)
                            for part in parts]

    def receive(self, rank: int, kind: Kind, number: int) -> Parcel:
        """Blocks until that value, or the answer to it, has come from a rank."""
        wanted = (rank, kind == Kind.VALUE, number)
        while wanted not in self._kept:
            self._receive_one(rank)
        return self._kept.pop(wanted)

    def _receive_one(self, rank: int) -> None:
        fields = _arrays.blank_fields()
        self._communicator.recv(fields, rank, _TAG)
        code, number, description = Description.unpack(fields)
        kind = Kind(code)
        array = None
        if kind != Kind.NO_GRADIENT:
            array = description.empty(self._communicator.device if description.on_gpu else "cpu")
            self._communicator.recv(array, rank, 0 if description.on_gpu else _TAG)
        self._kept[rank, kind == Kind.VALUE, number] = Parcel(kind, description, array)

    def finish(self) -> None:
        """Blocks until everything that was sent has been taken."""
        while self._under_way:
            self._under_way.popleft().wait()

"""What the process of a DataLoader and its workers send each other: messages, and shared memory."""

from __future__ import annotations

import mmap
import os
import pickle
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

# A message of more travels in memory of its own, so that those on their way, two or so per worker,
# fit into a socket's buffer and nobody waits for who does not read.
_MOST_INLINE = 4096


def new_memory(size: int) -> int:
    """A descriptor of `size` bytes of shared memory, zeros: it has no name, and is gone with the
    last process that has it."""
    descriptor = os.memfd_create("tutti-data", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, size)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def send_memory(connection: Connection, descriptor: int) -> None:
    """Gives the other side a descriptor, which stays open here."""
    reduction.send_handle(connection, descriptor, 0)


def receive_memory(connection: Connection, size: int) -> mmap.mmap:
    """Maps what send_memory() sent."""
    descriptor = reduction.recv_handle(connection)
    try:
        return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)


def send(connection: Connection, message: Any) -> None:
    """Sends an object that can be pickled."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    if len(data) <= _MOST_INLINE:
        connection.send_bytes(data)
        return
    descriptor = new_memory(len(data))
    try:
        with mmap.mmap(descriptor, len(data)) as memory:
            memory.write(data)
        connection.send_bytes(pickle.dumps(_Elsewhere(len(data))))
        send_memory(connection, descriptor)
    finally:
        os.close(descriptor)


def receive(connection: Connection) -> Any:
    """Waits for a message. Raises EOFError if the other side has closed."""
    message = pickle.loads(connection.recv_bytes())
    if isinstance(message, _Elsewhere):
        with receive_memory(connection, message.size) as memory:
            message = pickle.loads(memory)
    return message


class _Elsewhere:
    """Stands for a message of `size` bytes, whose memory comes next."""

    def __init__(self, size: int) -> None:
        self.size = size

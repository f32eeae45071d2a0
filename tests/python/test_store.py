"""tutti.Store: keys and values that the ranks share."""

import array
import os
import select
import threading
import time

import numpy
import pytest

import launching
import tutti
from test_interrupt import LIMIT, interrupted_after

SIZES = [0, 1, 63, 4096, 65_537, 2_000_003]


def everybody_gets_all(place):
    comm = place.communicator()
    store = tutti.Store(comm)
    for size in SIZES:
        store.set(f"{place.rank}/{size}", bytes([place.rank + 1]) * size)
    for rank in range(place.ranks):
        for size in SIZES:
            value = store.get(f"{rank}/{size}")
            assert isinstance(value, bytes) and value == bytes([rank + 1]) * size
    assert store.add("count", 1) in range(1, place.ranks + 1)
    comm.barrier()
    assert store.get("count") == str(place.ranks).encode()
    store.close()
    with pytest.raises(tutti.CommunicationError, match="closed"):
        store.get("count")
    comm.barrier()


def test_everybody_gets_what_everybody_sets(on_ranks):
    on_ranks(everybody_gets_all)


@pytest.fixture
def store():
    with tutti.Communicator(0, 1, tutti.NcclIdHolder(), timeout=20) as comm:
        yield tutti.Store(comm)


def test_a_value_is_anything_that_has_bytes(store):
    for value in [b"bytes", bytearray(b"more"), memoryview(b"view")[1:], array.array("d", [1.5]),
                  numpy.arange(6.0).reshape(2, 3)]:
        store.set("it", value)
        assert store.pop("it") == bytes(value)
    store.set("ключ\0", b"\0\xff")
    assert store.get("ключ\0") == b"\0\xff"


def test_bad_arguments(store):
    for value in ("text", 3, None):
        with pytest.raises(TypeError):
            store.set("it", value)
    with pytest.raises(TypeError, match="value is .*, but must be bytes-like, and contiguous"):
        store.set("it", memoryview(b"1234")[::2])
    with pytest.raises(TypeError):
        store.set(7, b"")
    for timeout in (-1, float("nan"), 1e10):
        with pytest.raises(tutti.InvalidArgument, match="timeout is"):
            store.get("it", timeout)
    store.set("word", b"1.5")
    with pytest.raises(tutti.InvalidArgument, match='"word"'):
        store.add("word", 1)


def test_a_key_that_does_not_come_is_named(store):
    for call in (store.get, store.pop):
        for timeout in (0, 0.05):
            with pytest.raises(tutti.DeadlineExceeded, match='"missing"') as raised:
                call("missing", timeout)
            assert isinstance(raised.value, TimeoutError) and isinstance(raised.value, tutti.Error)
    store.set("missing", b"")
    assert store.get("missing", timeout=0) == b""


def test_a_wait_lets_other_threads_run(store):
    got = []
    waiting = threading.Thread(target=lambda: got.append(store.pop("late", 20)))
    waiting.start()
    store.set("late", b"here")
    waiting.join()
    assert got == [b"here"]


def test_ctrl_c_ends_a_wait_and_nothing_else(store):
    assert interrupted_after(lambda: store.get("missing")) < LIMIT
    store.set("missing", b"1")
    assert store.add("missing", 1) == 2


def one_leaves(place):
    """Its process ends, too: who waits for what another one sets is not disturbed."""
    comm = place.communicator(timeout=60)
    store = tutti.Store(comm)
    store.set(f"process/{place.rank}", str(os.getpid()).encode())
    process = os.pidfd_open(int(store.get("process/1")))
    comm.barrier()
    if place.rank == 1:
        store.close()
        comm.close()
        return
    assert select.select([process], [], [], 30)[0]
    with pytest.raises(tutti.DeadlineExceeded):
        store.get("never", timeout=0)
    store.set(f"ended/{place.rank}", b"")
    assert store.get(f"ended/{2 - place.rank}") == b""


def test_a_rank_that_has_left_may_end():
    launching.run(one_leaves, 3, "fork")


def one_is_killed(place):
    comm = place.communicator(timeout=60)
    store = tutti.Store(comm)
    comm.barrier()
    if place.rank == 1:
        os.kill(os.getpid(), 9)
    begin = time.monotonic()
    with pytest.raises(tutti.PeerLost, match="rank 1"):
        store.get("never")
    assert time.monotonic() - begin < 20


def test_a_rank_that_is_killed_is_named():
    outcomes, _ = launching.outcomes_of(one_is_killed, 3, "fork")
    assert [outcome and outcome[0] for outcome in outcomes] == ["value", None, "value"], outcomes

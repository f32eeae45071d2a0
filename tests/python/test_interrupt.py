"""Ctrl-C and other signals during waits."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy
import pytest

import launching
import tutti
from tutti import opt

LIMIT = 10  # seconds from Ctrl-C to KeyboardInterrupt: no deadline passes as soon


def interrupted_after(wait):
    """Presses Ctrl-C while `wait` waits; how long it took to be heard."""
    pressed = []

    def press():
        pressed.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(0.3, press)
    try:
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            wait()
        return time.monotonic() - pressed[0]
    finally:
        timer.join()


def buckets(comm):
    params = [numpy.ones(1000, numpy.float32) for _ in range(5)]
    dist = opt.DistOpt(opt.SGD(), communicator=comm, buffSize=1)
    dist.register_parameters(params)  # with rank 1; the step is without it
    return lambda: dist((p, p) for p in reversed(params))


def sparse_buckets(comm):
    """On a GPU emit itself waits, once a bucket is full, for how many elements are sent."""
    device = "cuda" if tutti._core.gpu_count() > 0 else "cpu"
    params = [comm.empty(1000, "float32", device=device) for _ in range(5)]
    dist = opt.DistOpt(opt.SGD(), communicator=comm, buffSize=1)
    dist.register_parameters(params)
    return lambda: dist.backward_and_sparse_update(((p, p) for p in reversed(params)), spars=0.0)


def pending_sum(comm):
    dist = opt.DistOpt(opt.SGD(), communicator=comm)
    dist.all_reduce(numpy.ones(100))
    return dist.wait


def dropped_stream(comm):
    def wait():
        stream = tutti.Stream()
        comm.all_reduce(numpy.ones(5), stream=stream)
        del stream  # runs what was submitted
        time.sleep(0)

    return wait


def dropped_sum(comm):
    def wait():
        dist = opt.DistOpt(opt.SGD(), communicator=comm)
        dist.all_reduce(numpy.ones(100))
        del dist
        time.sleep(0)

    return wait


def event(comm):
    stream = tutti.Stream()
    operation = comm.all_reduce(numpy.ones(5), stream=stream)

    return lambda: (operation.wait(), stream)  # a stream that goes waits, too


def on_stream(comm):
    stream = tutti.Stream()
    comm.all_reduce(numpy.ones(100), stream=stream)
    return stream.synchronize


WAITS = {
    "all_reduce": lambda comm: lambda: comm.all_reduce(numpy.ones(5)),
    "recv": lambda comm: lambda: comm.recv(numpy.ones(5), 1),
    "send": lambda comm: lambda: comm.send(numpy.ones(100_000), 1),
    "empty": lambda comm: lambda: comm.empty(5),
    "split": lambda comm: lambda: comm.split(0),
    "event": event,
    "stream": on_stream,
    "buckets": buckets,
    "sparse buckets": sparse_buckets,
    "pending sum": pending_sum,
    "dropped stream": dropped_stream,
    "dropped sum": dropped_sum,
}


def until_there(path):
    while not path.exists():
        time.sleep(0.01)


def pressing(place, name, folder):
    comm = place.communicator()
    ready, heard = pathlib.Path(folder, "ready"), pathlib.Path(folder, "heard")
    if place.rank == 1:
        if name in ("buckets", "sparse buckets"):
            WAITS[name](comm)
        ready.touch()  # it has left the last collective of both
        until_there(heard)  # does something else; the communicator learns it at the next call
        with pytest.raises(tutti.PeerLost, match="interrupted") as lost:
            comm.barrier()
        assert lost.value.ranks == (0,)
        return 0.0
    try:
        wait = WAITS[name](comm)
        until_there(ready)
        after = interrupted_after(wait)
    finally:
        heard.touch()
    with pytest.raises(tutti.CommunicationError):
        comm.barrier()
    return after


@pytest.mark.parametrize("name", WAITS)
def test_ctrl_c_ends_a_wait(name, tmp_path):
    assert launching.run(pressing, 2, "fork", name, tmp_path)[0] < LIMIT


@pytest.mark.parametrize("launch", ["spawn", "mpi"])
def test_ctrl_c_however_launched(launch, tmp_path):
    assert launching.run(pressing, 2, launch, "all_reduce", tmp_path,
                         finalises=launch != "mpi")[0] < LIMIT


def between_hosts(place, folder):
    os.environ["TUTTI_HOST_ID"] = os.environ["OMPI_COMM_WORLD_RANK"]
    return pressing(place, "all_reduce", folder)


def test_ctrl_c_between_hosts(tmp_path):
    assert launching.run(between_hosts, 2, "mpi", tmp_path, finalises=False)[0] < LIMIT


def test_ctrl_c_ends_the_wait_for_others_to_come():
    for rank in (0, 1):
        assert interrupted_after(
            lambda: tutti.Communicator(rank, 2, tutti.NcclIdHolder())) < LIMIT


def test_ctrl_c_in_a_child_that_a_thread_forked():
    """Of all threads the child has that one, which becomes its main thread."""
    status = []

    def press_in_a_child():
        tutti.Communicator(0, 1, tutti.NcclIdHolder()).barrier()  # here it is none
        child = os.fork()
        if child == 0:
            try:
                interrupted_after(lambda: tutti.Communicator(0, 2, tutti.NcclIdHolder()))
                os._exit(7)
            finally:
                os._exit(1)
        status.append(os.WEXITSTATUS(os.waitpid(child, 0)[1]))

    thread = threading.Thread(target=press_in_a_child)
    thread.start()
    thread.join()
    assert status == [7]


def test_handlers_that_raise_nothing_run_during_a_wait():
    heard = []
    before = signal.signal(signal.SIGUSR1, lambda *_: heard.append(time.monotonic()))
    try:
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        start = time.monotonic()
        with pytest.raises(tutti.PeerLost, match="rank 1"):
            tutti.Communicator(0, 2, tutti.NcclIdHolder(), timeout=2)
        timer.join()
        assert heard and heard[0] - start < 2
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_ctrl_c_on_a_terminal_leaves_nothing(tmp_path):
    """It goes to the parent and to all ranks at once."""
    script = tmp_path / "script.py"
    script.write_text("""
import multiprocessing, os, re, numpy, tutti

def rank_main(ticket, rank):
    comm = tutti.Communicator(rank, 2, ticket)
    comm.empty(10)
    with open("/proc/self/maps") as maps:
        os.write(1, (re.search(r"/dev/shm/tutti\\S*", maps.read()).group() + "\\n").encode())
    while True:
        comm.all_reduce(numpy.ones(10))
        if rank == 1:
            comm.recv(numpy.ones(1), 0)

if __name__ == "__main__":
    ticket = tutti.NcclIdHolder()
    ranks = [multiprocessing.Process(target=rank_main, args=(ticket, rank)) for rank in (0, 1)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
""")
    parent = subprocess.Popen([sys.executable, script], start_new_session=True, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        paths = (parent.stdout.readline() + parent.stdout.readline()).split()
        os.killpg(parent.pid, signal.SIGINT)
        _, errors = parent.communicate(timeout=20)
        assert parent.returncode != 0 and "KeyboardInterrupt" in errors
        assert len(paths) == 2 and not any(map(os.path.exists, paths))
        with pytest.raises(ProcessLookupError):
            os.killpg(parent.pid, 0)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)

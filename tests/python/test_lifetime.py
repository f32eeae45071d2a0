"""Ctrl-C, lost ranks, forks, the interpreter's exit, and what must not be left behind."""

import contextlib
import gc
import os
import pathlib
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

import numpy
import pytest

import launching
import tutti
from tutti import opt

LIMIT = 1.0  # seconds from Ctrl-C to KeyboardInterrupt


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
        if name == "buckets":
            buckets(comm)
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


def in_time(press):
    """Whether Ctrl-C is heard within LIMIT, in one of a few attempts: the machine may be busy."""
    return any(press() < LIMIT for _ in range(3))


@pytest.fixture
def folder(tmp_path):
    """Makes a new folder at each call."""
    return lambda: tempfile.mkdtemp(dir=tmp_path)


@pytest.mark.parametrize("name", WAITS)
def test_ctrl_c_ends_a_wait(name, folder):
    assert in_time(lambda: launching.run(pressing, 2, "fork", name, folder())[0])


@pytest.mark.parametrize("launch", ["spawn", "mpi"])
def test_ctrl_c_however_launched(launch, folder):
    assert in_time(lambda: launching.run(pressing, 2, launch, "all_reduce", folder())[0])


def between_hosts(place, folder):
    os.environ["TUTTI_HOST_ID"] = os.environ["OMPI_COMM_WORLD_RANK"]
    return pressing(place, "all_reduce", folder)


def test_ctrl_c_between_hosts(folder):
    assert in_time(
        lambda: launching.run(between_hosts, 2, "mpi", folder(), finalises=False)[0])


def test_ctrl_c_ends_the_wait_for_others_to_come():
    for rank in (0, 1):
        assert in_time(lambda: interrupted_after(
            lambda: tutti.Communicator(rank, 2, tutti.NcclIdHolder())))


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


def dying(place):
    comm = place.communicator()
    if place.rank == 1:
        comm.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(tutti.PeerLost, match="rank 1: its process has ended") as lost:
        comm.barrier()  # it, too, may fail, where another rank has missed rank 1 already
        while True:
            comm.all_reduce(numpy.ones(10))
    return lost.value.ranks


@pytest.mark.parametrize("launch", ["fork", "spawn", "forkserver"])
def test_a_killed_rank_is_named_by_the_others(launch):
    outcomes, codes = launching.outcomes_of(dying, 3, launch)
    assert outcomes == [("value", (1,)), None, ("value", (1,))]
    assert codes == [0, -signal.SIGKILL, 0]


def test_exceptions_travel_by_pickle():
    for error in (tutti.PeerLost((1, 2), "gone"), tutti.SystemError(28, "full"),
                  tutti.MismatchError("both sides")):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.__dict__) == (type(error), str(error), error.__dict__)
    assert str(tutti.PeerLost((1, 2), "gone")) == "lost rank 1, rank 2: gone"
    ticket = tutti.NcclIdHolder()
    assert pickle.loads(pickle.dumps(ticket)) == ticket == tutti.NcclIdHolder.parse(str(ticket))
    assert len(str(ticket)) == 256 and ticket != tutti.NcclIdHolder() and ticket != str(ticket)
    assert len({ticket, pickle.loads(pickle.dumps(ticket))}) == 1
    with pytest.raises(tutti.InvalidArgument):
        tutti.NcclIdHolder.parse("not one")


def disagreeing(place):
    comm = place.communicator()
    with pytest.raises(tutti.MismatchError, match="3.*4|4.*3"):
        comm.all_reduce(numpy.ones(3 + place.rank))


@pytest.mark.parametrize("launch", ["fork", "mpi"])
def test_ranks_that_disagree(launch):
    launching.run(disagreeing, 2, launch)


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


SCRIPTS = {
    "an exception with a communicator in a global": "raise RuntimeError('over')",
    "an operation under way on a stream": """
stream = tutti.Stream()
comm.all_reduce(numpy.ones(100), stream=stream)""",
    "a sum under way": """
dist = tutti.opt.DistOpt(communicator=comm)
dist.all_reduce(numpy.ones(100))""",
    "a thread that waits": """
import threading, time
threading.Thread(target=comm.barrier, daemon=True).start()
time.sleep(0.2)""",
    "a reference that never goes": """
dist = tutti.opt.DistOpt(communicator=comm)
dist.all_reduce(numpy.ones(100))
cycle = [comm, dist]
cycle.append(cycle)
import sys
sys.leak = cycle""",
    "a forked child": """
import os, sys
dist = tutti.opt.DistOpt(communicator=comm)
dist.all_reduce(numpy.ones(100))
stream = tutti.Stream()
child = os.fork()
if child == 0:
    try:
        comm.barrier()
    except tutti.CommunicationError:
        sys.exit(7)
assert os.WEXITSTATUS(os.waitpid(child, 0)[1]) == 7""",
}


ENDS = [(end, False) for end in SCRIPTS] + [("an operation under way on a stream", True),
                                            ("a sum under way", True)]


@pytest.mark.parametrize("end, killed", ENDS)
def test_the_interpreter_exits(end, killed):
    """Rank 1 is there, or dead, and never comes to the operation."""
    script = f"""
import numpy, sys, tutti
ticket = tutti.NcclIdHolder.parse(sys.argv[1])
comm = tutti.Communicator(int(sys.argv[2]), 2, ticket, timeout=60)
if int(sys.argv[2]) == 1:
    sys.stdin.read()
    sys.exit()
print("met", flush=True)
{SCRIPTS[end]}
"""
    ticket = str(tutti.NcclIdHolder())
    ranks = [subprocess.Popen([sys.executable, "-c", script, ticket, str(rank)], text=True,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              start_new_session=True)
             for rank in (0, 1)]
    try:
        assert ranks[0].stdout.readline() == "met\n"
        if killed:
            ranks[1].kill()
        _, errors = ranks[0].communicate(timeout=30)  # half of what a wait may last
        assert ranks[0].returncode == (1 if "raise" in SCRIPTS[end] else 0), errors
        ranks[1].communicate(timeout=30)
        assert ranks[1].returncode == (-signal.SIGKILL if killed else 0)
    finally:
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(rank.pid, signal.SIGKILL)  # and a child that it has forked
            rank.communicate()


def segments():
    """The files of shared memory that this process maps."""
    with open("/proc/self/maps") as maps:
        return set(re.findall(r"/dev/shm/tutti\S*", maps.read()))


def test_an_exception_ends_all_hosts(tmp_path):
    """Rank 0 leaves; rank 1, on a host of its own, learns it long before the deadline."""
    script = tmp_path / "script.py"
    script.write_text("""
import os, numpy, tutti
os.environ["TUTTI_HOST_ID"] = os.environ["OMPI_COMM_WORLD_RANK"]
comm = tutti.Communicator(timeout=90)
comm.barrier()
if comm.global_rank == 0:
    raise RuntimeError("out of data")
comm.barrier()
""")
    start = time.monotonic()
    done = subprocess.run([*launching.MPIEXEC, "-n", "2", sys.executable, script],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode != 0 and "out of data" in done.stderr
    assert time.monotonic() - start < 60


def owned():
    """What a process holds: descriptors, threads, children, mappings of shared memory."""
    with open("/proc/self/task/{0}/children".format(os.getpid())) as children:
        return (len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")),
                set(children.read().split()), segments())


def is_more(now, before):
    return not all(one <= other for one, other in zip(now, before))


def settled(before=None):
    """owned(), twice the same and no more than before, if it comes to that: a thread that was joined
    may be listed for a moment more."""
    gc.collect()
    deadline = time.monotonic() + 15
    last = None
    while last != (last := owned()) or before and is_more(last, before):
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return last


def cycles(place, tickets):
    seen = set()

    def cycle(ticket):
        comm = tutti.Communicator(place.rank, 2, ticket) if ticket else tutti.Communicator()
        array = comm.empty(100)
        comm.all_reduce(array, stream=tutti.Stream()).wait()
        seen.update(segments())

    cycle(tickets[0])
    before = settled()
    for ticket in tickets[1:]:
        cycle(ticket)
    after = settled(before)
    assert len(seen) >= len(tickets)
    assert [path for path in seen if os.path.exists(path)] == []
    return before, after


@pytest.mark.parametrize("launch, count", [("fork", 1000), ("mpi", 40)])
def test_communicators_leave_nothing_behind(launch, count):
    tickets = [tutti.NcclIdHolder() if launch == "fork" else None for _ in range(1 + count)]
    for before, after in launching.run(cycles, 2, launch, tickets):
        assert not is_more(after, before), f"{after}, and before {before}"


def left(place):
    comm = place.communicator()
    if place.rank == 1:
        with pytest.raises(tutti.PeerLost, match="rank 0"):
            comm.barrier()
            comm.barrier()
        return
    comm.barrier()
    stream = tutti.Stream()
    pending = comm.recv(numpy.ones(5), 1, stream=stream)
    comm.close()
    comm.close()
    with pytest.raises(tutti.CommunicationError, match="closed"):
        comm.barrier()
    with pytest.raises(tutti.CommunicationError, match="its communicator was closed"):
        pending.wait()


def test_close():
    launching.run(left, 2, "fork")

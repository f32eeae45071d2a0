"""Lost ranks, forks, the interpreter's exit, and what must not be left behind."""

import contextlib
import gc
import os
import pickle
import re
import signal
import subprocess
import sys
import time

import numpy
import pytest

import launching
import tutti


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
    assert pickle.loads(pickle.dumps(ticket)) == ticket == tutti.NcclIdHolder.parse(ticket.text())
    assert len(ticket.text()) == 256 and ticket != tutti.NcclIdHolder() and ticket != ticket.text()
    # Logs and tracebacks are read by others, who could join with it.
    for shown in (repr(ticket), str(ticket), f"{ticket}", f"{[ticket]!r}"):
        assert ticket.text()[:8] not in shown and "NcclIdHolder" in shown
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
    ticket = tutti.NcclIdHolder().text()
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

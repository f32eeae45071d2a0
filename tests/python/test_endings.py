"""An exception that ends a rank reaches the others as the reason, with its type and text."""

import contextlib
import multiprocessing
import subprocess
import sys

import numpy
import pytest

import launching
import tutti
from tutti import opt


class OutOfData(Exception):
    pass


def rank_of(place):
    """One of three ranks, of which rank 1 ends with an exception."""
    comm = place.communicator()
    comm.barrier()
    return comm


def meet(comm):
    """The reason for which rank 1 was lost."""
    with pytest.raises(tutti.PeerLost) as lost:
        for _ in range(2):  # a barrier may have been under way
            comm.barrier()
    assert lost.value.ranks == (1,)
    return lost.value.reason


def raising(place, kind):
    comm = rank_of(place)
    if place.rank != 1:
        return meet(comm)
    if kind == "exit in a handler":  # as torch.multiprocessing ends a process
        try:
            raise OutOfData("no more images")
        except OutOfData:
            sys.exit(1)
    if kind == "exit":
        sys.exit(3)
    if kind == "two lines":
        raise OutOfData("no more images\n" + 5000 * "\u00e9")
    raise OutOfData("no more images")


def tell(connection, *arguments):
    connection.send(raising(*arguments))


def reasons(method, kind):
    """What ranks 0 and 2 learn where the function of rank 1's process raises."""
    context = multiprocessing.get_context(method)
    ticket = tutti.NcclIdHolder()
    pipes = [context.Pipe() for _ in range(3)]
    ranks = [context.Process(target=tell, args=(pipes[rank][1], launching.Place(rank, 3, ticket), kind))
             for rank in range(3)]
    for rank in ranks:
        rank.start()
    try:
        for rank in (0, 2):
            assert pipes[rank][0].poll(60)
        found = [pipes[rank][0].recv() for rank in (0, 2)]
        for rank in ranks:
            rank.join(60)
        assert ranks[1].exitcode == (3 if kind == "exit" else 1)
        return found
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()


@pytest.mark.parametrize("method, kind, expected", [
    ("fork", "raise", "OutOfData: no more images"), ("spawn", "raise", "OutOfData: no more images"),
    ("fork", "exit", "SystemExit: 3"), ("fork", "exit in a handler", "OutOfData: no more images")])
def test_a_process_of_multiprocessing(method, kind, expected):
    assert reasons(method, kind) == [expected, expected]


def test_forked_while_an_exception_is_handled():
    """That is the parent's, and not how the ranks end."""
    with contextlib.suppress(KeyError):
        try:
            raise KeyError("the parent's")
        except KeyError:
            assert launching.run(ending_well, 2, "fork") == [1, 1]
            assert reasons("fork", "raise") == ["OutOfData: no more images"] * 2


def ending_well(place):
    comm = place.communicator()
    array = numpy.ones(1)
    comm.all_reduce(array, op="max")
    return int(array[0])


def test_a_long_text_is_cut():
    for reason in reasons("fork", "two lines"):
        assert reason.startswith("OutOfData: no more images\n\u00e9\u00e9") and len(reason) > 400


SCRIPT = """
import atexit, os, pathlib, sys, time

learnt = pathlib.Path(sys.argv[2])

def wait():
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not learnt.exists():
        time.sleep(0.01)

if os.environ["OMPI_COMM_WORLD_RANK"] == "1":  # mpiexec ends the others when this one has ended
    atexit.register(wait)  # before tutti, whose own comes first therefore
import tutti

if sys.argv[1] == "hosts":
    os.environ["TUTTI_HOST_ID"] = os.environ["OMPI_COMM_WORLD_RANK"]
comm = tutti.Communicator(timeout=30)
if comm.global_rank == 1:
    comm.barrier()
    stream = tutti.Stream()
    comm.barrier(stream)  # under way
    raise LookupError("no more images")
try:
    for _ in range(3):
        comm.barrier()
except tutti.PeerLost as lost:
    part = learnt.with_suffix(".part")
    part.write_text(f"{lost.ranks} {lost.reason}")
    part.rename(learnt)
"""


@pytest.mark.parametrize("layout", ["host", "hosts"])
def test_a_program_under_mpiexec(layout, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    learnt = tmp_path / "learnt"
    done = subprocess.run([*launching.MPIEXEC, "-n", "2", sys.executable, script, layout, learnt],
                          capture_output=True, text=True, timeout=100)
    assert learnt.exists(), done.stdout + done.stderr
    assert learnt.read_text() == "(1,) LookupError: no more images"


def in_a_block(place, kind):
    comm = rank_of(place)
    if place.rank != 1:
        return meet(comm)
    try:
        with comm as entered:
            assert entered is comm
            if kind == "raise":
                raise OutOfData("no more images")
            if kind == "exit":
                sys.exit(0)
    except (OutOfData, SystemExit):
        pass
    with pytest.raises(tutti.CommunicationError, match="closed"):
        comm.barrier()
    return None


@pytest.mark.parametrize("kind, expected", [("raise", "OutOfData: no more images"),
                                            ("exit", "it has destroyed its communicator"),
                                            ("leave", "it has destroyed its communicator")])
def test_a_block(kind, expected):
    assert launching.run(in_a_block, 3, "fork", kind) == [expected, None, expected]


def missing(place, sending):
    """Rank 1 leaves out the gradient that all others send, with buckets under way or none."""
    comm = rank_of(place)
    params = [numpy.zeros(3, numpy.float32) for _ in range(3)]
    dist = opt.DistOpt(opt.SGD(), communicator=comm, buffSize=1 if sending else 100)
    dist.register_parameters([(f"p{i}", param) for i, param in enumerate(params)])
    pairs = [(param, numpy.ones(3, numpy.float32)) for param in reversed(params)]
    if place.rank == 1:
        with comm:
            dist(pairs[:2])
    with pytest.raises(tutti.PeerLost) as lost:
        dist(pairs)
        dist(pairs)
    return lost.value.ranks, lost.value.reason


@pytest.mark.parametrize("sending", [True, False])
def test_a_missing_gradient(sending):
    outcomes, _ = launching.outcomes_of(missing, 3, "fork", sending)
    text = "InvalidArgument: the backward pass did not emit parameter 'p0'"
    assert outcomes[1][0] == "error" and "did not emit parameter 'p0'" in str(outcomes[1][1])
    for rank in (0, 2):
        lost, reason = outcomes[rank][1]
        assert lost == (1,) and text in reason and "At:" not in reason


def failing(place):
    comm = rank_of(place)
    dist = opt.DistOpt(opt.SGD(), communicator=comm, buffSize=1)
    params = [numpy.zeros(3, numpy.float32) for _ in range(2)]
    dist.register_parameters(params)

    def backward():
        yield params[1], numpy.ones(3, numpy.float32)
        if place.rank == 1:
            raise OutOfData("no more images")
        yield params[0], numpy.ones(3, numpy.float32)

    try:
        dist(backward())
        dist(backward())
    except OutOfData:
        return None
    except tutti.PeerLost as lost:
        return lost.reason


def test_a_pass_that_fails_half_way():
    reason = "gave up in the middle of a step: OutOfData: no more images"
    assert launching.run(failing, 2, "fork") == [reason, None]

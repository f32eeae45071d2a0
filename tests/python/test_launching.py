"""The tests' own launcher: what fails on a rank fails the test."""

import atexit
import multiprocessing
import os
import subprocess
import sys

import pytest

import launching
import tutti

LAUNCHES = ["fork", "spawn", "forkserver", "mpi"]


def failing(place):
    place.communicator()
    assert place.rank != 1, "rank 1 is not content"
    return place.rank


@pytest.mark.parametrize("launch", LAUNCHES)
def test_a_failure_on_one_rank_is_a_failure(launch):
    with pytest.raises(AssertionError, match="(?s)rank 1: .*rank 1 is not content"):
        launching.run(failing, 2, launch)


def crashing(place):
    place.communicator()
    if place.rank == 1:
        # Forked processes run no exit handlers; all of them flush their streams at the end.
        atexit.register(os._exit, 7)
        import sys
        sys.stdout = type("Crash", (), {"flush": lambda self: os._exit(7)})()
    return place.rank


@pytest.mark.parametrize("launch", LAUNCHES)
def test_a_crash_at_the_exit_is_a_failure(launch):
    with pytest.raises(AssertionError, match="exit codes .*7"):
        launching.run(crashing, 2, launch)


FAILING = """if True:
    import array, atexit, fcntl, os, pathlib, sys, termios, time
    heard, process = pathlib.Path("heard"), pathlib.Path("process")
    def until(condition):
        while not condition():
            time.sleep(0.001)
    def unread():  # of what the launcher was told
        count = array.array("i", [0])
        fcntl.ioctl(int(os.environ["TUTTI_PROGRESS_FD"]), termios.FIONREAD, count)
        return count[0]
    def wait():  # after tutti's own exit handler
        until(lambda: unread() == 0)
        heard.touch()
        until(lambda: not os.path.exists(f"/proc/{process.read_text()}"))
    first = os.environ["TUTTI_RANK"] == "1"
    if first:
        atexit.register(wait)
    import tutti
    communicator = tutti.Communicator()
    if not first:
        process.write_text(str(os.getpid()))
    communicator.barrier()
    if first:
        FAIL
    try:
        communicator.barrier()
    except tutti.PeerLost as error:
        until(heard.exists)
        raise RuntimeError("no training without the others") from error
    """


@pytest.mark.parametrize("fail", [
    "raise ValueError('out of data')", "raise tutti.CommunicationError('out of data')", "sys.exit('out of data')"])
def test_the_rank_that_failed_is_named_not_the_one_that_ended_for_it_first(tmp_path, fail):
    (tmp_path / "train.py").write_text(FAILING.replace("FAIL", fail))
    result = subprocess.run([sys.executable, "-m", "tutti.run", "-n", "2", "train.py"], cwd=tmp_path,
                            text=True, capture_output=True, timeout=60)
    assert "worker 1 (rank 1 of 2)" in result.stderr, result.stderr
    assert "failed as well: worker 0" in result.stderr, result.stderr
    assert "out of data\n" in result.stderr.partition("failed as well")[0], result.stderr


PLAIN = """
import numpy, sys, tutti
first, second = tutti.Communicator(), tutti.Communicator()
total = numpy.array([first.global_rank + 1])
second.all_reduce(total)
sgd = tutti.opt.DistOpt(tutti.opt.SGD(lr=0.1))
print(tutti.launched_by(), sgd.global_rank, sgd.world_size, total[0])
"""


def start(rank, program, **variables):
    """A process with the variables of a launcher that is not MPI's."""
    alone = {name: value for name, value in os.environ.items()
             if not name.startswith(("OMPI_COMM_", "PMIX_"))}
    return subprocess.Popen([sys.executable, "-c", program], text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE,
                            env={**alone, **variables, "RANK": str(rank), "WORLD_SIZE": "2"})


def test_processes_that_torchrun_started_join():
    ranks = [start(rank, PLAIN, LOCAL_WORLD_SIZE="2", MASTER_ADDR="localhost",
                   MASTER_PORT=str(os.getpid())) for rank in range(2)]
    for rank, process in enumerate(ranks):
        out, err = process.communicate(timeout=60)
        assert (out, err) == (f"torchrun {rank} 2 3\n", "")


def test_ranks_on_several_hosts_are_told_how_they_meet():
    with start(1, "import tutti; tutti.Communicator()", LOCAL_WORLD_SIZE="1") as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "InvalidArgument: RANK is 1 and WORLD_SIZE is 2" in err
    assert "mpiexec -n 2" in err and "tutti run --hosts" in err


def trainer(number, endpoints, connection):
    comm = tutti.Communicator.from_endpoints(endpoints, number, timeout=30)
    connection.send((comm.global_rank, comm.world_size))


@pytest.mark.parametrize("form", [",".join, list])
def test_trainers_are_named_by_endpoints(form):
    endpoints = form([f"host-{os.getpid()}:{6170 + number}" for number in range(2)])
    ours, theirs = multiprocessing.Pipe()
    second = multiprocessing.get_context("fork").Process(target=trainer, args=(1, endpoints, theirs))
    second.start()
    comm = tutti.Communicator.from_endpoints(endpoints, 0, timeout=30)
    assert ours.recv() == (1, 2)
    assert comm.global_rank == 0
    second.join()
    with pytest.raises(tutti.InvalidArgument, match="trainer_id is 2, but endpoints names 2"):
        tutti.Communicator.from_endpoints(endpoints, 2)

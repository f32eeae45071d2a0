"""The tests' own launcher: what fails on a rank fails the test."""

import atexit
import os
import subprocess
import sys

import pytest

import launching

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


def test_a_process_that_torchrun_started_does_not_go_on_alone():
    alone = {name: value for name, value in os.environ.items()
             if not name.startswith(("OMPI_COMM_", "PMIX_"))}
    result = subprocess.run([sys.executable, "-c", "import tutti; tutti.Communicator()"],
                            env={**alone, "WORLD_SIZE": "2", "RANK": "1"}, capture_output=True,
                            text=True, timeout=60)
    assert result.returncode == 1
    assert "InvalidArgument: WORLD_SIZE is 2 and RANK is 1" in result.stderr
    assert "mpiexec -n 2" in result.stderr and "NcclIdHolder" in result.stderr

"""Ways to launch ranks, as fixtures."""

import signal

import pytest

import launching
import tutti

# Some shells have what runs in the background ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Starting an interpreter anew, or MPI, takes longest, and differs in little: not with every number of ranks.
WORLDS = [("fork", 1), ("fork", 2), ("fork", 3), ("spawn", 2), ("mpi", 3)]


@pytest.fixture(params=WORLDS, ids=lambda world: f"{world[0]}-{world[1]}")
def on_ranks(request):
    """Calls a function on 1 to 3 ranks, however launched; what it returned, by rank."""
    launch, ranks = request.param
    return lambda body, *arguments: launching.run(body, ranks, launch, *arguments)


@pytest.fixture
def comm():
    """A communicator of one rank."""
    return tutti.Communicator(0, 1, tutti.NcclIdHolder())


@pytest.fixture
def digits(tmp_path):
    """A folder with a few images, as MNIST has them."""
    import mnist_programs  # whose example not every test has

    mnist_programs.write_digits(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def deadline(monkeypatch):
    """A wait that never ends fails its test, and soon."""
    monkeypatch.setenv("TUTTI_TIMEOUT", "40")

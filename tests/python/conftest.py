"""Ways to launch ranks, as fixtures."""

import signal

import pytest

import launching

# Some shells have what runs in the background ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

WORLDS = [(launch, ranks) for launch in ("fork", "spawn", "mpi") for ranks in (1, 2, 3)]


@pytest.fixture(params=WORLDS, ids=lambda world: f"{world[0]}-{world[1]}")
def on_ranks(request):
    """Calls a function on 1, 2 and 3 ranks, however launched; what it returned, by rank."""
    launch, ranks = request.param
    return lambda body, *arguments: launching.run(body, ranks, launch, *arguments)


@pytest.fixture(autouse=True)
def deadline(monkeypatch):
    """A wait that never ends fails its test, and soon."""
    monkeypatch.setenv("TUTTI_TIMEOUT", "40")

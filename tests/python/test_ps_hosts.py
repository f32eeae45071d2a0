"""tutti.ps between hosts that ranks of mpiexec pretend to be on: rows and gradients travel over TCP."""

import os

import numpy
import pytest

import launching
import test_ps
from tutti import ps

DIM = 4


def on_hosts(hosts):
    """Puts this rank on the host of that number in the list."""
    os.environ["TUTTI_HOST_ID"] = str(hosts[int(os.environ["OMPI_COMM_WORLD_RANK"])])


def in_step(place, hosts, servers):
    on_hosts(hosts)
    return test_ps.in_step(place, servers, ps.Adagrad(0.5))


# Workers 0 and 1 everywhere; their servers beside one of them, alone, or as threads.
@pytest.mark.parametrize("hosts, servers", [([0, 1, 1], 1), ([0, 0, 1, 2], 2), ([0, 1], "thread")])
def test_sync_is_alike_between_hosts(hosts, servers):
    wanted = launching.run(test_ps.in_step, 2, "fork", "thread", ps.Adagrad(0.5))
    found = launching.run(in_step, len(hosts), "mpi", hosts, servers)
    assert [digest for digest in found if digest is not None] == wanted


def rounded(place, wire):
    """A row of 1 + 2^-20 as it is read, and what is left of it after a gradient of 2^-1 + 2^-9."""
    on_hosts([0, 1])
    items = ps.Embedding("item", DIM, optimizer=ps.Sgd(1.0), init=ps.Constant(1 + 2**-20))
    fleet = ps.start([items], servers=1, communicator=place.communicator(), mode=ps.Sync(), wire=wire)
    with fleet:
        if fleet.is_server:
            return fleet.serve()
        before = items.lookup([1])[0]
        items.push([2], numpy.full((1, DIM), 2**-1 + 2**-9))
        fleet.step()
        return before.tolist(), items.lookup([2])[0].tolist()


@pytest.mark.parametrize("wire, before, after", [("float32", 1 + 2**-20, 0.5 - 2**-9 + 2**-20),
                                                 ("float16", 1.0, 0.5 - 2**-9),
                                                 ("bfloat16", 1.0, 0.5)])
def test_rows_and_gradients_travel_as_wire_says(wire, before, after):
    assert launching.run(rounded, 2, "mpi", wire)[0] == ([before] * DIM, [after] * DIM)

"""tutti.ps between hosts that ranks of mpiexec pretend to be on: rows and gradients travel over TCP."""

import os
import time

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


def prefetched(place):
    """Rows as they are looked up, and how many bytes each look-up has sent: without a prefetch, with
    one, and with one after a push."""
    on_hosts([0, 1])
    items = ps.Embedding("item", DIM, optimizer=ps.Sgd(1.0), init=ps.Constant(3.0), padding_idx=2)
    fleet = ps.start([items], servers=1, communicator=place.communicator(), mode=ps.Async())
    with fleet:
        if fleet.is_server:
            return fleet.serve()
        ids = numpy.array([[3, 1], [2, 3]])
        results = []

        def prefetch():  # a thread sends what is asked for
            before = fleet.stats()["bytes_sent"]
            items.prefetch(ids)
            while fleet.stats()["bytes_sent"] == before:
                time.sleep(0.001)

        def look_up():
            before = fleet.stats()["bytes_sent"]
            rows = items.lookup(ids)
            results.append((rows[..., 0].tolist(), fleet.stats()["bytes_sent"] - before))

        look_up()
        prefetch()
        look_up()
        items.push([3], numpy.ones((1, DIM)))
        fleet.step()
        fleet.flush()
        prefetch()
        look_up()
        for number in range(20):  # that nobody looks up
            items.prefetch(ids + number)
        look_up()
        return results


def test_prefetched_rows_are_those_that_there_are():
    (alone, sent), (ahead, none), (pushed, none_either), (last, _) = launching.run(
        prefetched, 2, "mpi")[0]
    assert alone == ahead == [[3.0, 3.0], [0.0, 3.0]]
    assert pushed == last == [[2.0, 3.0], [0.0, 2.0]]
    assert sent > 0 and none == none_either == 0  # they had been asked for before

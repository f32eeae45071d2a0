"""What streams keep alive: arrays of operations that are under way, or have failed."""

import gc
import pathlib
import threading
import time
import weakref

import numpy
import pytest

import launching
import tutti


def alone():
    return tutti.Communicator(0, 1, tutti.NcclIdHolder())


WAYS = {
    "synchronize": lambda stream: stream.synchronize(),
    "the next operation": lambda stream: alone().all_reduce(numpy.ones(3), stream=stream),
    "the end of the stream": lambda stream: None,
}


def failed(place, way):
    comm = place.communicator()
    if place.rank == 1:
        return
    stream = tutti.Stream()
    array = numpy.ones(10)
    kept = weakref.ref(array)
    event = comm.all_reduce(array, stream=stream)
    with pytest.raises(tutti.PeerLost):
        event.wait()
    del array, event
    WAYS[way](stream)
    del stream
    gc.collect()
    assert kept() is not None
    del comm
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("way", WAYS)
def test_what_a_failed_operation_works_on_lives_as_long_as_its_communicator(way):
    """Between hosts MPI may still touch it."""
    launching.run(failed, 2, "fork", way)


@pytest.mark.parametrize("way", WAYS)
def test_what_has_ended_well_is_let_go_of(way):
    comm, stream = alone(), tutti.Stream()
    array = numpy.ones(10)
    kept = weakref.ref(array)
    comm.all_reduce(array, stream=stream).wait()
    del array
    WAYS[way](stream)
    del stream
    gc.collect()
    assert kept() is None


def failed_sum(place):
    comm = place.communicator()
    dist = tutti.opt.DistOpt(communicator=comm)
    if place.rank == 1:
        return
    array = numpy.ones(10)
    kept = weakref.ref(array)
    dist.all_reduce(array)
    del array, dist
    gc.collect()
    assert kept() is not None
    del comm
    gc.collect()
    assert kept() is None


def test_so_does_that_of_a_sum_of_dist_opt():
    launching.run(failed_sum, 2, "fork")


def until_there(path):
    while not path.exists():
        time.sleep(0.01)


def meanwhile(place, folder):
    comm, stream = place.communicator(), tutti.Stream()
    added, looked = pathlib.Path(folder, "added"), pathlib.Path(folder, "looked")
    if place.rank == 1:
        until_there(added)
        comm.all_reduce(numpy.ones(10))
        until_there(looked)
        comm.all_reduce(numpy.ones(10))
        return
    comm.all_reduce(numpy.ones(10), stream=stream)
    waiting = threading.Thread(target=stream.synchronize)
    waiting.start()
    time.sleep(0.3)  # it waits for the first; where it does not yet, it waits for the second, too
    array = numpy.ones(10)
    kept = weakref.ref(array)
    event = comm.all_reduce(array, stream=stream)
    del array
    added.touch()
    waiting.join(3)
    gc.collect()
    assert kept() is not None
    looked.touch()
    event.wait()
    waiting.join()
    assert (kept() == 2).all()
    stream.synchronize()
    gc.collect()
    assert kept() is None


def test_what_is_added_while_another_thread_synchronizes_stays(tmp_path):
    launching.run(meanwhile, 2, "fork", str(tmp_path))

"""tutti.distributed.init_process_group: ranks that join by an address, and what is refused."""

import multiprocessing
import os

import numpy
import pytest

import launching
import tutti
import tutti.distributed as dist

LIMIT = 60  # seconds: what a busy machine may take for what takes none


def in_group(rank, ranks, port, connection):
    dist.init_process_group("127.0.0.1", port, ranks, rank)
    if rank == 0:  # received when this function has ended
        dist.functional.remote_send(numpy.arange(100_003), ranks - 1)
    ranks_seen = dist.functional.all_gather(numpy.array([rank])).tolist()
    if rank == ranks - 1:
        connection.recv()  # the others are at their ends
        assert dist.functional.remote_recv(0)[-1] == 100_002
    connection.send((ranks_seen, dist.get_rank()))


def test_init_process_group():
    port = launching.free_ports(1)[0]
    ends = []
    for rank in range(3):
        ours, theirs = multiprocessing.Pipe()
        multiprocessing.get_context("spawn" if rank > 0 else "fork").Process(
            target=in_group, args=(rank, 3, port, theirs)).start()
        ends.append(ours)
    assert [end.poll(LIMIT) and end.recv() for end in ends[:2]] == [([0, 1, 2], r) for r in range(2)]
    ends[2].send("go on")
    assert ends[2].poll(LIMIT) and ends[2].recv() == ([0, 1, 2], 2)
    for arguments, message in [(("localhost", 5, 0, 0), "world_size is 0"),
                               (("localhost", 5, 2, 2), "rank is 2"),
                               (("localhost", 70000, 2, 0), "port is 70000"),
                               (("192.0.2.1", 5, 2, 0), "192.0.2.1.*mpiexec")]:
        with pytest.raises(tutti.InvalidArgument, match=message):
            dist.init_process_group(*arguments)


def wrong_place(place):
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    with pytest.raises(tutti.InvalidArgument, match="as rank [01] of 2"):
        dist.init_process_group("localhost", 5, 2, 1 - rank)


def test_init_process_group_is_compared_with_mpiexec():
    launching.run(wrong_place, 2, "mpi", finalises=False)

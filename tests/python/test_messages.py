"""Tags, recvs from any source, and exchanges."""

import numpy
import pytest

import launching
import tutti

COUNTS = [0, 1, 17, 70_000]


def data(rank, count, salt=0):
    return (numpy.arange(count) + 1000 * rank + salt).astype(numpy.int64)


def exchange(place):
    comm = place.communicator()
    everyone = range(place.ranks)
    for stream in (None, tutti.Stream()):
        for count in COUNTS:
            got = [numpy.full(count, -1) for _ in everyone]
            messages = [tutti.Recv(got[peer], peer, tag=peer) for peer in everyone]
            messages += [
                tutti.Send(data(place.rank, count, peer), peer, place.rank) for peer in everyone
            ]
            comm.exchange(iter(messages), stream).wait()
            for peer in everyone:
                numpy.testing.assert_array_equal(got[peer], data(peer, count, place.rank))
                received = messages[peer].received
                assert (received.source, received.tag) == (peer, peer)
    assert comm.exchange([]).received is None


def test_every_rank_exchanges_with_every_rank_and_itself(on_ranks):
    on_ranks(exchange)


def from_any(place):
    comm = place.communicator()
    if place.rank != 0:
        comm.send(data(place.rank, 5), 0, 10 + place.rank)
        return
    sources = []
    for _ in range(1, place.ranks):
        got = numpy.empty(5, numpy.int64)
        event = comm.recv(got, tutti.ANY_SOURCE, tutti.ANY_TAG, tutti.Stream())
        event.wait()
        assert event.received.tag == 10 + event.received.source
        numpy.testing.assert_array_equal(got, data(event.received.source, 5))
        sources.append(event.received.source)
    assert sorted(sources) == list(range(1, place.ranks))


def test_from_any_source(on_ranks):
    on_ranks(from_any)


def refused(place):
    comm = place.communicator()
    x, y = numpy.zeros(4), numpy.zeros(4)
    for messages, text in [
        ([tutti.Send(x, 0), 3], "messages\\[1\\] is a int, but must be a tutti.Send or a tutti.Recv"),
        ([tutti.Send([1], 0)], "messages\\[0\\].array"),
        ([tutti.Send(x, 9)], "messages\\[0\\].destination is 9"),
        ([tutti.Recv(x, 0, -4)], "messages\\[0\\].tag is -4"),
        ([tutti.Recv(x[:3], 0), tutti.Recv(x[2:], 0, 1)], "messages\\[1\\].*overlap"),
    ]:
        with pytest.raises((TypeError, ValueError), match=text):
            comm.exchange(messages)
    comm.exchange([tutti.Send(x + 7, place.rank), tutti.Recv(y, place.rank)])  # nothing has happened
    assert (y == 7).all()


def test_bad_arguments(on_ranks):
    on_ranks(refused)


def other_tags(place):
    comm = place.communicator()
    with pytest.raises(tutti.MismatchError, match="tag 1.*tag 2"):
        if place.rank == 0:
            comm.send(numpy.zeros(4), 1, tag=1)
        else:
            comm.recv(numpy.zeros(4), 0, tag=2)


def test_tags_that_differ_are_told_to_both():
    launching.run(other_tags, 2, "fork")

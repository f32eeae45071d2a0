"""Messages of the backend "tutti" of torch.distributed that are too long to be copied to the store: a
send of one waits for its recv."""

import datetime
import os
import pathlib
import queue
import select
import signal
import threading
import time
from types import SimpleNamespace

import numpy
import pytest

import launching
import tutti
from torch_group import begin, dist, ranks, torch  # noqa: F401 - ranks is a fixture
from tutti.torch._long_messages import LongSends
from tutti.torch._messages import _MOST_COPIED

LONG = _MOST_COPIED // 4 + 1  # float32


def pattern(source, length, salt=0):
    return torch.arange(length, dtype=torch.float32) + 1000 * source + salt


def every_length(rank, ranks):
    """Each rank sends to all others before it receives, around the length from which on messages
    wait."""
    others = [other for other in range(ranks) if other != rank]
    for length in (0, 1, LONG - 2, LONG - 1, LONG, LONG + 1, 10 * LONG + 3):
        got = {other: torch.empty(length) for other in others}
        mine = pattern(rank, length)
        works = [dist.isend(mine, other) for other in others]
        works += [dist.irecv(got[other], other) for other in others]
        for work in works:
            work.wait()
        for other in others:
            assert torch.equal(got[other], pattern(other, length)), (rank, other, length)
    one = torch.full((3 * LONG,), rank, dtype=torch.uint8)[::3]  # not in one piece
    into = torch.zeros(2 * LONG, dtype=torch.uint8)[::2]
    work = dist.isend(one, (rank + 1) % ranks)
    dist.recv(into, (rank - 1) % ranks)
    work.wait()
    assert into.unique().tolist() == [(rank - 1) % ranks]
    single = torch.zeros(2)[::2]  # in one piece, but its stride is not 1
    work = dist.isend(torch.full((2,), float(rank))[::2], (rank + 1) % ranks)
    dist.recv(single, (rank - 1) % ranks)
    work.wait()
    assert single.item() == (rank - 1) % ranks
    dist.barrier()  # who has ended is lost to those who wait for a message


@pytest.mark.parametrize("count", [2, 3, 4])
def test_messages_of_every_length_arrive(ranks, count):
    ranks(every_length, count)


def any_order(rank, ranks):
    tags = (5, 3, 4)
    if rank == 0:
        messages = {tag: pattern(0, LONG, tag) for tag in tags}
        works = [dist.isend(messages[tag], 1, tag=tag) for tag in tags]
        dist.send(torch.ones(1), 1, tag=9)  # short ones overtake
        assert not any(work.is_completed() for work in works)
        dist.recv(torch.empty(1), 1)
        for work in works:
            work.wait()
    elif rank == 1:
        dist.recv(torch.empty(1), 0, tag=9)
        dist.send(torch.ones(1), 0)
        got = {tag: torch.empty(LONG) for tag in tags}
        wanted = [dist.irecv(got[tag], 0, tag=tag) for tag in sorted(tags)]
        for work in reversed(wanted):
            work.wait()
        assert all(torch.equal(got[tag], pattern(0, LONG, tag)) for tag in tags)
    dist.barrier()
    if rank == 0:
        got = torch.empty(LONG)
        sources = [dist.recv(got) for _ in range(ranks - 1)]
        assert sorted(sources) == list(range(1, ranks))
        assert torch.equal(got, pattern(sources[-1], LONG))
    else:
        dist.send(pattern(rank, LONG), 0)
    dist.barrier()


def test_tags_and_sources_come_in_any_order(ranks):
    ranks(any_order, 3)


def callbacks(rank, ranks):
    """Of a message's future they wait for another one, while a third is wanted."""
    other = 1 - rank
    for length in (1, LONG):
        first, second, third = (torch.empty(length) for _ in range(3))

        def then(_):
            dist.recv(second, other, tag=2)
            return second[0].item()

        future = dist.irecv(first, other, tag=1).get_future().then(then)
        wanted = dist.irecv(third, other, tag=3)
        works = [dist.isend(pattern(rank, length, tag), other, tag=tag) for tag in (1, 2, 3)]
        assert future.wait() == 1000 * other + 2
        for work in (*works, wanted):
            work.wait()
        assert torch.equal(third, pattern(other, length, 3))
    dist.barrier()


def test_what_follows_a_message_may_wait_for_others(ranks):
    ranks(callbacks, 2)


def beside_collectives(rank, ranks):
    """A message goes on while its ranks are in a collective, and while a third one is not."""
    work = dist.isend(pattern(rank, LONG), 1 - rank) if rank < 2 else None
    total = torch.ones(LONG)
    sums = dist.all_reduce(total, async_op=True)
    if rank < 2:
        got = torch.empty(LONG)
        dist.recv(got, 1 - rank)
        assert torch.equal(got, pattern(1 - rank, LONG))
        work.wait()
        dist.send(torch.ones(1), 2)
    else:
        dist.recv(torch.empty(1), 0)
        dist.recv(torch.empty(1), 1)
    sums.wait()
    assert total.unique().tolist() == [ranks]
    dist.barrier()


def test_messages_go_beside_collectives(ranks):
    ranks(beside_collectives, 3)


def another_length(rank, ranks):
    with pytest.raises(tutti.InvalidArgument, match=f"rank 0 has sent {4 * LONG} bytes with tag 7, but "
                                                    f"the tensor to receive them has {4 * LONG + 8}"):
        if rank == 0:
            dist.send(pattern(0, LONG), 1, tag=7)
        else:
            dist.recv(torch.empty(LONG + 2), 0, tag=7)
    got = torch.empty(LONG)
    if rank == 0:
        dist.send(pattern(0, LONG), 1)
    else:
        dist.recv(got, 0)
        assert torch.equal(got, pattern(0, LONG))
    dist.barrier()


def test_another_length_is_refused_on_both_sides(ranks):
    ranks(another_length, 2)


def a_copy_fails(rank, ranks):
    for length in (1, LONG):
        work = dist.isend(torch.ones(length), 1 - rank)
        # PyTorch refuses to write to memory that several elements share.
        receive = dist.group.WORLD.recv([torch.zeros(1).expand(length + 1)[1:]], 1 - rank, 0)
        if length > 1:
            with pytest.raises(RuntimeError, match="single memory location"):
                receive.wait(datetime.timedelta(seconds=20))
        else:
            receive.wait()
        work.wait()
        got = torch.zeros(length)
        work = dist.isend(torch.full((length,), 2.0), 1 - rank)
        dist.recv(got, 1 - rank)
        work.wait()
        assert (got == 2).all()
    dist.barrier()


def test_a_tensor_that_cannot_be_written_is_an_error_and_others_are_received(ranks):
    ranks(a_copy_fails, 2)


def nobody_receives(place, path):
    begin(place, path, seconds=1)
    if place.rank == 0:
        start = time.monotonic()
        with pytest.raises(tutti.CommunicationError, match="rank 1 has not received the message with "
                                                           "tag 4 within 1 s"):
            dist.send(pattern(0, LONG), 1, tag=4)
        assert time.monotonic() - start < 5
        dist.send(pattern(0, LONG, 1), 1, tag=4)
    else:
        group = dist.group.WORLD
        # Not before the other one has given up, of which the token tells.
        while "offer" not in found(group, "offer/0/1"):
            pass
        got = torch.empty(LONG)
        dist.recv(got, 0, tag=4)
        assert torch.equal(got, pattern(0, LONG, 1))  # what was withdrawn is not received
    dist.barrier()
    dist.destroy_process_group()


def found(group, key):
    try:
        group._mailbox.store.get(key, timeout=0)
    except tutti.DeadlineExceeded:
        return ""
    return key


def test_a_message_that_nobody_receives_is_withdrawn(tmp_path):
    launching.run(nobody_receives, 2, "fork", str(tmp_path / "store"))


def lose_a_peer(place, path, dead):
    """A rank is killed before the other half of a message."""
    begin(place, path)
    dist.barrier()
    if place.rank == dead:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(tutti.PeerLost, match=f"rank {dead}"):
        if place.rank == 0:
            dist.send(pattern(0, LONG), 1)
        else:
            dist.recv(torch.empty(LONG), 0)


@pytest.mark.parametrize("dead", [0, 1])
def test_a_killed_peer_is_named(tmp_path, dead):
    outcomes, _ = launching.outcomes_of(lose_a_peer, 2, "fork", str(tmp_path / "store"), dead)
    assert outcomes[dead] is None and outcomes[1 - dead][0] == "value", outcomes


def leave(place, path):
    """Ranks leave, the last first. What they had sent is received, and who waits for nobody else is
    told that they have left."""
    begin(place, path)
    processes = [None] * place.ranks
    dist.all_gather_object(processes, os.getpid())
    ends = [os.pidfd_open(process) for process in processes]
    dist.barrier()
    if place.rank == 2:
        dist.send(torch.full((1,), 2.0), 0)
        dist.destroy_process_group()
        return
    assert select.select([ends[2]], [], [], 30)[0]
    got = torch.zeros(1)
    if place.rank == 1:
        work = dist.irecv(got, 0)
        with pytest.raises(tutti.DeadlineExceeded):
            work.wait(datetime.timedelta(seconds=0.5))
        dist.send(got, 0)
        work.wait()
        dist.send(torch.full((1,), 1.0), 0, tag=5)
        dist.destroy_process_group()
        return
    dist.recv(got, 1)
    dist.send(got, 1)
    assert select.select([ends[1]], [], [], 30)[0]
    for source, tag in ((2, 0), (1, 5)):
        dist.recv(got, source, tag=tag)
        assert got.item() == source
    for source, lost in ((1, "1"), (None, "1, rank 2")):
        with pytest.raises(tutti.PeerLost, match=f"lost rank {lost}: it has destroyed its process group"):
            dist.recv(got, source, tag=6)


def test_who_has_left_is_lost_to_those_who_wait_for_them_alone(tmp_path):
    launching.run(leave, 3, "fork", str(tmp_path / "store"))


class BrokenStore:
    """In which nothing comes, and whose ranks are lost when an offer is withdrawn."""

    def add(self, key, delta):
        return delta

    def set(self, key, value):
        pass

    def pop(self, key, timeout):
        if key.startswith("offer/"):
            raise tutti.PeerLost((1,), "its process has ended")
        raise tutti.DeadlineExceeded("nothing has come")


def test_a_loss_at_the_deadline_ends_a_long_send():
    ends = queue.SimpleQueue()
    sends = LongSends(SimpleNamespace(global_rank=0), BrokenStore(), timeout=0.01)
    sends.offer(numpy.zeros(LONG), 1, 0, ends.put)
    assert isinstance(ends.get(timeout=20), tutti.PeerLost)
    sends.close()


class LockThatIsLeft:
    """A lock that lets another one in as soon as it is left: calls `then`, once."""

    def __init__(self):
        self.lock, self.then = threading.Lock(), None

    def __enter__(self):
        self.lock.acquire()

    def __exit__(self, *_):
        self.lock.release()
        then, self.then = self.then, None
        if then:
            then()


def test_a_long_send_that_was_asked_for_at_its_deadline_ends_once():
    ends = queue.SimpleQueue()
    lost = tutti.PeerLost((1,), "its process has ended")

    class Store(BrokenStore):
        def pop(self, key, timeout):
            if key.startswith("offer/"):  # somebody has it, and the send goes on
                sends._lock.then = lambda: sends.fail(lost)
            raise tutti.DeadlineExceeded("nothing has come")

    sends = LongSends(SimpleNamespace(global_rank=0), Store(), timeout=0.01)
    sends._lock = LockThatIsLeft()
    sends.offer(numpy.zeros(LONG), 1, 0, ends.put)
    assert ends.get(timeout=20) is lost
    sends.close()
    assert ends.empty()


def destroy(place, path):
    """The other rank asks for it afterwards, of which a file tells."""
    begin(place, path)
    dist.barrier()
    destroyed = pathlib.Path(path + ".destroyed")
    if place.rank == 0:
        work = dist.isend(pattern(0, LONG), 1)
        dist.destroy_process_group()
        destroyed.touch()
        with pytest.raises(tutti.CommunicationError, match="was destroyed"):
            work.wait()
    else:
        while not destroyed.exists():
            time.sleep(0.001)
        with pytest.raises(tutti.CommunicationError):
            dist.recv(torch.empty(LONG), 0)


def test_a_group_is_destroyed_with_a_message_that_nobody_has_asked_for(tmp_path):
    launching.run(destroy, 2, "fork", str(tmp_path / "store"), finalises=False)


def between_hosts(place, path):
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    os.environ["TUTTI_HOST_ID"] = f"host{rank % 2}"
    place.rank, place.ranks = rank, 3
    begin(place, path)
    every_length(rank, 3)
    any_order(rank, 3)
    dist.barrier()
    dist.destroy_process_group()


def test_messages_between_hosts(tmp_path):
    launching.run(between_hosts, 3, "mpi", str(tmp_path / "store"))

"""The backend "tutti" of torch.distributed: its operations."""

import datetime

import pytest

import tutti
from torch_group import dist, ranks, torch  # noqa: F401 - ranks is a fixture
from tutti.torch._work import TuttiWork

DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
          torch.bfloat16, torch.float32, torch.float64]
OP = dist.ReduceOp


def sums(rank, ranks):
    for dtype in DTYPES:
        given = torch.tensor([0, 1, 1] if dtype == torch.bool else [1, 2, 3]).to(dtype)
        everybody = [(given ^ bool(r)) if dtype == torch.bool else given + r for r in range(ranks)]
        stacked = torch.stack([one.to(torch.float64) for one in everybody])
        for op, expected in ((OP.SUM, stacked.sum(0)), (OP.MAX, stacked.amax(0)),
                             (OP.MIN, stacked.amin(0)), (OP.PRODUCT, stacked.prod(0))):
            tensor = everybody[rank].clone()
            dist.all_reduce(tensor, op)
            assert torch.equal(tensor, expected.to(dtype)), (dtype, op, tensor)
        if not dtype.is_floating_point:
            for op, combine in ((OP.BAND, torch.bitwise_and), (OP.BOR, torch.bitwise_or),
                                (OP.BXOR, torch.bitwise_xor)):
                tensor, expected = everybody[rank].clone(), everybody[0]
                for other in everybody[1:]:
                    expected = combine(expected, other)
                dist.all_reduce(tensor, op)
                assert torch.equal(tensor, expected), (dtype, op)
        else:
            tensor = everybody[rank].clone()
            dist.all_reduce(tensor, OP.AVG)
            assert torch.equal(tensor, stacked.mean(0).to(dtype))
    for tensor in (torch.tensor(2.0), torch.ones(0), torch.nn.Parameter(torch.ones(2))):
        before = tensor.detach().clone()
        dist.all_reduce(tensor)
        assert torch.equal(tensor.detach(), before * ranks)
    with pytest.raises((tutti.InvalidArgument, RuntimeError), match="band"):
        dist.all_reduce(torch.ones(2), OP.BAND)


def test_all_reduce_takes_every_type_and_operation(ranks):
    ranks(sums, 2)


def moves(rank, ranks):
    for dtype in (*DTYPES, torch.complex64):
        mine = torch.arange(4).reshape(2, 2).to(dtype) if dtype != torch.bool else torch.eye(2) > 0
        theirs = [mine if dtype == torch.bool else mine + r for r in range(ranks)]
        mine = theirs[rank]
        parts = [torch.empty_like(mine) for _ in range(ranks)]
        dist.all_gather(parts, mine)
        assert all(map(torch.equal, parts, theirs))
        whole = torch.empty((2 * ranks, 2), dtype=dtype)
        dist.all_gather_into_tensor(whole, mine)
        assert torch.equal(whole, torch.cat(theirs))
        got = [torch.empty_like(mine) for _ in range(ranks)] if rank == 0 else None
        dist.gather(mine, got)
        assert rank != 0 or all(map(torch.equal, got, theirs))
        part = torch.empty_like(mine)
        dist.scatter(part, theirs if rank == ranks - 1 else None, src=ranks - 1)
        assert torch.equal(part, mine)
        dist.broadcast(part, 0)
        assert torch.equal(part, theirs[0])
    total = torch.empty(2)
    dist.reduce_scatter_tensor(total, torch.arange(2.0 * ranks))
    assert torch.equal(total, ranks * torch.arange(2.0 * rank, 2.0 * rank + 2))
    dist.reduce_scatter(total, [torch.full((2,), float(r)) for r in range(ranks)], OP.MAX)
    assert torch.equal(total, torch.full((2,), float(rank)))
    one = torch.full((3,), 1.0 + rank)
    dist.reduce(one, ranks - 1)
    assert rank != ranks - 1 or torch.equal(one, torch.full((3,), ranks * (ranks + 1) / 2))
    # Rank r sends s + 1 rows to rank s.
    out = torch.full((ranks * (rank + 1), 2), -1)
    dist.all_to_all_single(out, torch.full((ranks * (ranks + 1) // 2, 2), rank),
                           [rank + 1] * ranks, [s + 1 for s in range(ranks)])
    assert out[:, 0].tolist() == [r for r in range(ranks) for _ in range(rank + 1)]
    many = [torch.empty(rank + 1) for _ in range(ranks)]
    dist.all_to_all(many, [torch.full((s + 1,), float(rank)) for s in range(ranks)])
    assert [part[-1].item() for part in many] == list(range(ranks))
    objects = [None] * ranks
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(ranks)]


def test_tensors_of_every_type_go_where_they_are_to(ranks):
    ranks(moves, 3)


def wrong_lists(rank, ranks):
    """Of which the total alone is right: elements would go to the wrong place. Nobody sends anything."""
    part = torch.zeros(2)
    one, three = torch.ones(1), torch.ones(3)
    calls = [(lambda: dist.reduce_scatter(part, [torch.ones(1)] * 4), "input_list has .*1, 1, 1, 1"),
             (lambda: dist.reduce_scatter(part, [one, three]), "input_list has .*1, 3")]
    if rank == 0:
        calls += [(lambda: dist.scatter(part, [one, three]), r"scatter_list\[0\] has 1 .* rank 2"),
                  (lambda: dist.scatter(part, [one] * 4), "scatter_list has 4 .* are 2 ranks"),
                  (lambda: dist.gather(part, [one, three]), r"gather_list\[0\] has 1 .* rank 2"),
                  (lambda: dist.gather(part, [torch.ones(2)] * 3), "gather_list has 3 .* are 2 ranks")]
    for call, told in calls:
        with pytest.raises(tutti.InvalidArgument, match=told):
            call()
    assert part.tolist() == [0.0, 0.0]
    dist.all_reduce(one)
    assert one.item() == ranks


def test_lists_of_wrong_lengths_are_refused(ranks):
    ranks(wrong_lists, 2)


def strided(rank, ranks):
    whole = torch.arange(24.0).reshape(4, 6) * (rank + 1)
    column = whole[:, 1]
    dist.all_reduce(column)
    assert torch.equal(column, torch.arange(24.0).reshape(4, 6)[:, 1] * sum(range(1, ranks + 1)))
    assert torch.equal(whole[:, 0], torch.arange(24.0).reshape(4, 6)[:, 0] * (rank + 1))
    transposed = torch.arange(6.0).reshape(2, 3).t() + rank
    dist.broadcast(transposed, 1)
    assert torch.equal(transposed, torch.arange(6.0).reshape(2, 3).t() + 1)
    channels_last = torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)
    got = [torch.zeros(2, 3, 4, 4) for _ in range(ranks)]
    dist.all_gather(got, channels_last)
    assert all(torch.equal(one, torch.ones(2, 3, 4, 4)) for one in got)
    sparse = torch.sparse_coo_tensor([[rank, 3]], [1.0, 2.0], (5,))
    dist.all_reduce(sparse)
    expected = torch.zeros(5)
    expected[:ranks] = 1
    expected[3] = 2 * ranks
    assert torch.equal(sparse.to_dense(), expected)
    sparse = torch.sparse_coo_tensor([[0]], torch.tensor([256.0 if rank == 0 else 1.0]).bfloat16(), (2,))
    dist.all_reduce(sparse)  # in bfloat16 256 + 1 is 256
    assert sparse.to_dense().tolist() == [258.0, 0.0]
    with pytest.raises(tutti.MismatchError, match=r"shape \[5\] on rank 0, but of \[6\] on rank 1"):
        dist.all_reduce(torch.sparse_coo_tensor([[0]], [1.0], (5 if rank == 0 else 6,)))


def test_tensors_need_not_be_in_one_piece(ranks):
    ranks(strided, 3)


def asynchronous(rank, ranks):
    tensors = [torch.full((1000,), float(i)) for i in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    last = torch.zeros(1)
    dist.all_reduce(last)  # comes after them
    assert all(work.is_completed() for work in works)
    for i, work in reversed(list(enumerate(works))):
        assert work.wait() is not False
        assert torch.equal(tensors[i], torch.full((1000,), float(i * ranks)))
    future = dist.all_reduce(tensors[1], async_op=True).get_future().then(
        lambda done: done.value()[0].sum())
    assert future.wait() == 1000 * ranks * ranks
    if rank == 0:  # the other one asks for it only when it has been told that this one went on
        work = dist.broadcast(last.fill_(5), 0, async_op=True)
        dist.send(torch.ones(1), 1)
        work.wait()
    else:
        dist.recv(torch.empty(1), 0)
        dist.broadcast(last, 0)
        assert last.item() == 5


def test_an_asynchronous_operation_lets_its_caller_go_on(ranks):
    ranks(asynchronous, 2)


def chained(rank, ranks):
    def more(done):
        tensor, = done.value()
        dist.all_reduce(tensor)
        return dist.all_reduce(tensor, async_op=True).get_future().then(lambda one: one.value()[0]).wait()

    futures = []
    for length in (1, 10**6, 1000):
        first = dist.all_reduce(torch.ones(length), async_op=True)
        futures.append(first.get_future().then(more).then(lambda done: done.value().unique().tolist()))
    last = torch.ones(1)
    dist.all_reduce(last)  # comes after all of them
    assert last.item() == ranks and all(future.done() for future in futures)
    assert [future.wait() for future in futures] == [[ranks**3]] * 3


def test_what_follows_an_operation_may_wait_for_others(ranks):
    ranks(chained, 3)


def messages(rank, ranks):
    # In this order each rank's first send would wait for another rank's second recv, in a circle.
    others = [(rank + step) % ranks for step in range(1, ranks)]
    got = {other: torch.empty(1000) for other in others}
    works = []
    for other in others:
        works.append(dist.isend(torch.full((1000,), float(rank)), other))
        works.append(dist.irecv(got[other], other))
    for work in works:
        work.wait()
    assert all(got[other][999] == other for other in others)
    if rank == 0:
        for tag in (1, 2, 3):
            dist.send(torch.full((2,), tag), 1, tag=tag)
    elif rank == 1:
        for tag in (3, 1, 2):
            into = torch.zeros(4, dtype=torch.int64)[::2]
            dist.recv(into, 0, tag=tag)
            assert into.tolist() == [tag, tag]
    dist.barrier()
    if rank == 0:
        sources = set()
        for _ in range(ranks - 1):
            one = torch.empty(1)
            source = dist.recv(one)
            assert one.item() == source
            sources.add(source)
        assert sources == set(range(1, ranks))
    else:
        dist.send(torch.tensor([float(rank)]), 0)
    dist.barrier()  # what follows is for a source, too
    with pytest.raises(tutti.InvalidArgument, match="tag is 4294967296"):
        dist.send(torch.ones(1), (rank + 1) % ranks, tag=2**32)
    into = torch.empty(3, dtype=torch.bfloat16)
    for work in dist.batch_isend_irecv([
            dist.P2POp(dist.irecv, into, (rank - 1) % ranks),
            dist.P2POp(dist.isend, torch.full((3,), rank).bfloat16(), (rank + 1) % ranks)]):
        work.wait()
    assert into.tolist() == [float((rank - 1) % ranks)] * 3
    dist.barrier()  # who has ended is lost to those who wait for a message


def test_messages_come_in_any_order(ranks):
    ranks(messages, 3)


def shown(rank, ranks):
    tensor = torch.ones(5)
    with torch.autograd.profiler.profile() as profile:
        dist.all_reduce(tensor)
        dist.all_reduce(tensor, async_op=True).wait()
        if rank == 0:
            dist.send(tensor, 1)
        else:
            dist.recv(tensor, 0)
        with pytest.raises(tutti.InvalidArgument):
            dist.all_reduce(torch.ones(2), OP.BAND)
        dist.barrier()
    events = [event for event in profile.function_events if event.name.startswith("tutti:")]
    last, = [event for event in events if event.name == "tutti:barrier"]
    assert all(event.time_range.end <= last.time_range.end for event in events)
    names = [event.name for event in events]
    assert sorted(names) == sorted(["tutti:all_reduce"] * 3 + ["tutti:barrier"] + [
        "tutti:recv" if rank else "tutti:send"])
    with torch.autograd.profiler.profile() as profile:
        net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
        net(torch.ones(2, 3)).sum().backward()
    assert "tutti:all_reduce" in [event.name for event in profile.function_events]


def test_the_profiler_shows_operations(ranks):
    ranks(shown, 2)


def groups(rank, ranks):
    pair, alone = dist.new_group([0, 2]), dist.new_group([1])
    if rank != 1:
        tensor = torch.ones(2)
        dist.all_reduce(tensor, group=pair)
        assert tensor.tolist() == [2, 2]
        assert dist.get_rank(pair) == rank // 2
        dist.broadcast(tensor.fill_(rank), 2, group=pair)
        assert tensor.tolist() == [2, 2]
    else:
        dist.barrier(group=alone)
    dist.destroy_process_group(alone if rank == 1 else pair)
    dist.barrier()


def test_groups_of_a_part_of_the_ranks(ranks):
    ranks(groups, 3)


def monitored(rank, ranks):
    group = dist.distributed_c10d._get_default_group()
    group.monitored_barrier(datetime.timedelta(seconds=30))
    if rank == 1:
        dist.recv(torch.empty(1), 0)
        return
    with pytest.raises(tutti.CommunicationError, match="Rank 1 failed to pass monitoredBarrier"):
        group.monitored_barrier(datetime.timedelta(seconds=0.3), wait_all_ranks=True)
    if rank == 0:
        dist.send(torch.ones(1), 1)


def monitored_again(rank, ranks):
    """Rank 2 is late for the second one, and all come to those that follow."""
    group = dist.distributed_c10d._get_default_group()
    store = group._mailbox.store

    def is_there(key):
        try:
            store.get(key, timeout=0)
        except tutti.DeadlineExceeded:
            return False
        return True

    for number in range(1, 6):
        if number == 2:
            if rank == 2:
                dist.recv(torch.empty(1), 0)
            with pytest.raises(tutti.CommunicationError, match="Rank 2 failed to pass"):
                group.monitored_barrier(datetime.timedelta(seconds=0.3))
            if rank == 0:
                dist.send(torch.ones(1), 2)
        else:
            group.monitored_barrier(datetime.timedelta(seconds=30))
    if rank == 0:
        keys = [f"barrier/{number}/{what}" for number in range(1, 6) for what in ("verdict", 1, 2)]
        assert [key for key in keys if is_there(key)] == ["barrier/5/verdict"]
    dist.barrier()


def test_monitored_barriers_leave_no_keys_behind(ranks):
    ranks(monitored_again, 3)


def test_a_monitored_barrier_names_who_does_not_come(ranks):
    ranks(monitored, 3)


def test_everything_public_is_documented():
    for thing in (*(getattr(tutti.torch, name) for name in tutti.torch.__all__), TuttiWork):
        assert thing.__doc__, thing
        own = [kind for kind in getattr(thing, "__mro__", ()) if kind.__module__.startswith("tutti.")]
        for kind in own:
            for member, value in vars(kind).items():
                described = callable(value) or isinstance(value, property)
                assert member.startswith("_") or not described or value.__doc__, f"{kind}.{member}"

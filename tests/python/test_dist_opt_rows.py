"""DistOpt on tables of which a pass gives few rows gradients: what travels, and that it trains as whole
gradients and as PyTorch's own optimisers do."""

import numpy
import pytest

import launching
import tutti
from torch_models import assert_same, torch
from tutti import opt

ROWS, WIDTH = 50, 4

# Ours, and PyTorch's with sparse gradients, or with dense ones where it takes no others.
OPTIMIZERS = {
    "sgd": (lambda: opt.SGD(lr=0.1), lambda of: torch.optim.SGD(of, lr=0.1), True),
    "momentum": (lambda: opt.SGD(lr=0.1, momentum=0.9), lambda of: torch.optim.SGD(of, lr=0.1, momentum=0.9),
                 True),
    "nesterov": (lambda: opt.SGD(lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
                 lambda of: torch.optim.SGD(of, lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True), False),
    "adagrad": (lambda: opt.Adagrad(lr=0.1, initial_accumulator_value=0.5),
                lambda of: torch.optim.Adagrad(of, lr=0.1, initial_accumulator_value=0.5), True),
    "adam": (lambda: opt.Adam(lr=0.1), lambda of: torch.optim.Adam(of, lr=0.1), False),
}


class Model(torch.nn.Module):
    def __init__(self, sparse=True, seed=0, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(seed)
        self.table = torch.nn.Embedding(ROWS, WIDTH, sparse=sparse)
        self.layer = torch.nn.Linear(WIDTH, 1)
        self.to(dtype)

    def forward(self, ids):
        return self.layer(self.table(ids)).square().sum()


def ids_of(rank, step):
    """Some are there several times; from step 3 on rank 1 has none, and in step 4 nobody."""
    generator = torch.Generator().manual_seed(10 * step + rank)
    count = 0 if (step > 2 and rank == 1) or step == 4 else 3 + 2 * rank
    return torch.randint(0, ROWS // 2, (count,), generator=generator)


def as_one_process_does(place, kind):
    comm = place.communicator()
    ours, theirs, takes_sparse = OPTIMIZERS[kind]
    model, whole = Model(seed=place.rank), Model(False, place.rank)
    dist = opt.DistOpt(ours(), communicator=comm, buffSize=2)
    shapes = [array.shape for array in dist.register_parameters(model)]
    assert shapes == [(0, WIDTH), (1, WIDTH), (1,)]
    dist_of_whole = opt.DistOpt(ours(), communicator=comm)
    dist_of_whole.register_parameters(whole)
    reference = Model(takes_sparse)
    assert_same(model, reference)
    optimizer = theirs(reference.parameters())
    for step in range(6):
        dist(model(ids_of(place.rank, step)))
        assert model.table.weight.grad.is_sparse
        dist_of_whole(whole(ids_of(place.rank, step)))
        assert_same(model, whole)  # to the bit
        optimizer.zero_grad()
        joined = sum(reference(ids_of(rank, step)) for rank in range(place.ranks))
        (joined / place.ranks).backward()
        optimizer.step()
        for one, two in zip(model.parameters(), reference.parameters()):
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
        rows = 0 if step == 4 or (step > 2 and place.rank == 1) else 3 + 2 * place.rank
        if step != 0:
            dense = 4 * (WIDTH + 1) + 2 * 64
            assert dist.bytes_per_step <= dense + rows * (8 + 4 * WIDTH)
    return [one.detach().numpy().tobytes() for one in model.parameters()]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_it_trains_as_one_process_does(kind, ranks):
    results = launching.run(as_one_process_does, ranks, "fork", kind)
    assert all(result == results[0] for result in results)


def in_every_mode(place):
    comm = place.communicator()
    models = [Model(sparse) for sparse in (True, False)]
    dists = [opt.DistOpt(opt.SGD(lr=0.1, momentum=0.5), communicator=comm) for _ in models]
    for model, dist in zip(models, dists):
        dist.register_parameters(model)
    methods = ["backward_and_update", "backward_and_partial_update", "backward_and_update_half",
               "backward_and_sparse_update", "backward_and_update"]
    for number, method in enumerate(methods):
        for step in range(2):
            for model, dist in zip(models, dists):
                ids = ids_of(place.rank, step)
                if step == 1:
                    dist.accumulate(model(ids[:2]))
                getattr(dist, method)(model(ids))
            assert_same(*models), (method, step)


def test_every_mode_does_as_with_dense_gradients():
    launching.run(in_every_mode, 2, "fork")


def without_a_gradient(place):
    """Of the table, on some ranks or all, or a whole one."""
    comm = place.communicator()
    models = [Model(sparse) for sparse in (True, False)]
    dists = [opt.DistOpt(opt.SGD(lr=0.1, momentum=0.9), communicator=comm, missing_as_zero=True)
             for _ in models]
    for model, dist in zip(models, dists):
        dist.register_parameters(model)
    for step in range(6):
        for model, dist in zip(models, dists):
            if step == 2 or (step == 3 and place.rank == 1):
                dist(model.layer(torch.ones(2, WIDTH)).sum())
            elif step == 4 and place.rank == 0:
                dist(model.layer(model.table.weight).square().sum())
            else:
                dist(model(ids_of(place.rank, 0)))
        assert_same(*models)


def test_ranks_without_a_gradient_and_with_a_whole_one():
    launching.run(without_a_gradient, 2, "fork")


def many_rows(place):
    comm = place.communicator()
    models = [Model(sparse) for sparse in (True, False)]
    for model in models:
        dist = opt.DistOpt(opt.SGD(lr=0.1), communicator=comm)
        dist.register_parameters(model)
        dist(model(torch.arange(ROWS)))
        assert dist.bytes_per_step >= 4 * ROWS * WIDTH
    assert_same(*models)


def test_as_many_rows_as_the_table_has_travel_whole():
    launching.run(many_rows, 2, "fork")


def unregistered(place):
    comm = place.communicator()
    models = [Model(sparse) for sparse in (True, False)]
    for model in models:
        dist = opt.DistOpt(opt.Adagrad(lr=0.1), communicator=comm)
        for step in range(3):
            dist(model(ids_of(place.rank, step)))
        if model.table.sparse:
            assert dist.bytes_per_step < 4 * ROWS * WIDTH
    assert_same(*models)


def test_the_first_pass_finds_tables():
    launching.run(unregistered, 2, "fork")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_tables_of_another_dtype(comm, dtype):
    models = [Model(sparse, dtype=dtype) for sparse in (True, False)]
    for model in models:
        dist = opt.DistOpt(opt.SGD(lr=0.1), communicator=comm, float64_as_float32=True)
        dist.register_parameters(model)
        for step in range(3):
            dist(model(ids_of(2, step)))
        assert (dist.bytes_per_step < 4 * ROWS * WIDTH) is model.table.sparse
    if dtype == torch.float64:
        assert_same(*models)
    else:  # PyTorch's dense gradient rounds each sum of a row, its sparse one may once
        torch.testing.assert_close(models[0].table.weight, models[1].table.weight, rtol=1e-2, atol=1e-2)


def by_hand(place):
    comm = place.communicator()
    table = numpy.zeros((10, 2), numpy.float32)
    bias = numpy.zeros(3, numpy.float32)
    dist = opt.DistOpt(opt.SGD(lr=1.0), communicator=comm)
    dist.register_parameters([("table", table), ("bias", bias)], sparse=[table])
    indices = numpy.array([place.rank, 9, 9])
    rows = numpy.full((3, 2), place.ranks, numpy.float32)
    dist([(bias, numpy.ones(3, numpy.float32)), (table, (indices, rows))])
    expected = numpy.zeros((10, 2))
    expected[:place.ranks] = -1
    expected[9] = -2 * place.ranks
    assert table.tolist() == expected.tolist() and bias.tolist() == [-1] * 3
    assert dist.bytes_per_step <= 64 + 2 * (8 + 8)


def test_arrays_of_other_libraries():
    launching.run(by_hand, 3, "fork")


def test_a_list_says_which_are_tables(comm):
    model = Model()
    dist = opt.DistOpt(opt.SGD(lr=0.1), communicator=comm)
    dist.register_parameters(model.named_parameters(), sparse=[model.table.weight])
    dist(model(ids_of(0, 0)))
    assert dist.bytes_per_step < 4 * ROWS * WIDTH


def test_a_frozen_table_is_none(comm):
    model = Model()
    model.table.weight.requires_grad_(False)
    dist = opt.DistOpt(opt.SGD(lr=0.1), communicator=comm)
    assert len(dist.register_parameters(model)) == 2
    dist(model(ids_of(0, 0)))


def test_what_is_no_table_is_refused(comm):
    dist = opt.DistOpt(communicator=comm)
    model = Model()
    with pytest.raises(tutti.InvalidArgument, match="sparse has #1, which is not among"):
        dist.register_parameters(model, sparse=[model.table.weight, torch.ones(3)])
    with pytest.raises(TypeError, match="sparse is a .*Parameter, but must be an iterable"):
        dist.register_parameters(model, sparse=model.table.weight)
    conv = torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)
    for bad in (torch.tensor(1.0), conv):
        with pytest.raises(tutti.InvalidArgument, match="parameter #0 is in sparse, but is no table"):
            dist.register_parameters([bad], sparse=[bad])
    dist.register_parameters(model)
    table, before = model.table.weight, model.table.weight.detach().clone()
    with pytest.raises(tutti.InvalidArgument, match=r"shape \(2, 3\), but parameter 'table.weight'"):
        dist([(table, (numpy.array([1, 2]), numpy.ones((2, 3), numpy.float32)))])
    with pytest.raises(tutti.InvalidArgument, match="'table.weight' has row 50, the parameter 50 rows"):
        dist([(table, (numpy.array([50]), numpy.ones((1, 4), numpy.float32)))])
    with pytest.raises(tutti.InvalidArgument, match="has 1 indices of i32"):
        dist([(table, (numpy.array([5], numpy.int32), numpy.ones((1, 4), numpy.float32)))])
    with pytest.raises(TypeError, match="gradient.*pair"):
        dist([(table, (1, 2, 3))])
    assert torch.equal(table, before)


def test_a_state_goes_on_with_rows(comm):
    results = []
    for resumes in (False, True):
        model = Model()
        dist = opt.DistOpt(opt.Adagrad(lr=0.1), communicator=comm)
        dist.register_parameters(model)
        for step in range(4):
            if resumes and step == 2:
                state, parameters = dist.state_dict(), model.state_dict()
                model = Model(seed=1)
                model.load_state_dict(parameters)
                dist = opt.DistOpt(opt.Adagrad(lr=0.1), communicator=comm)
                dist.register_parameters(model)
                dist.load_state_dict(state)
            dist(model(ids_of(0, step)))
        results.append(model)
    assert_same(*results)

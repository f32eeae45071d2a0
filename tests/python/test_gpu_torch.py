"""PyTorch's tensors on a GPU. Skips itself where there is none."""

import numpy
import pytest

import launching
import tutti
from tutti import data, opt, ps


@pytest.fixture
def torch():
    """PyTorch, where it finds a GPU."""
    if tutti._core.gpu_count() == 0:
        pytest.skip("no GPU")
    found = pytest.importorskip("torch")
    if not found.cuda.is_available():
        pytest.skip("PyTorch finds no GPU")
    return found


def test_collectives_work_in_place(torch, comm):
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32,
                  torch.int64, torch.uint8, torch.int8):
        ones = torch.ones(2, 3, dtype=dtype, device=comm.device)
        comm.all_reduce(ones, factor=2)
        assert (ones == 2).all()
    out = torch.zeros(6, device=comm.device)
    comm.all_gather(torch.arange(6.0, device=comm.device), out)
    assert out.tolist() == [0, 1, 2, 3, 4, 5]


def test_what_another_stream_makes_is_waited_for(torch, comm):
    torch.cuda.set_device(comm.device)
    comm.all_reduce(torch.ones(1, device=comm.device))  # NCCL takes longer to start than the sleep
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
        data = torch.full((1 << 20,), 3.0, device=comm.device)
        comm.all_reduce(data, factor=2)
    assert (data == 6).all()


def test_a_worker_stream(torch, comm):
    stream = tutti.Stream()
    data = torch.ones(1000, device=comm.device)
    event = comm.all_reduce(data, factor=2, stream=stream)
    event.wait()
    assert (data == 2).all()


def test_refusals(torch, comm):
    square = torch.ones(4, 4, device=comm.device)
    with pytest.raises(ValueError, match="array is not contiguous"):
        comm.all_reduce(square.T)
    with pytest.raises(TypeError, match="array has dtype torch.complex64"):
        comm.all_reduce(torch.ones(4, dtype=torch.complex64, device=comm.device))
    with pytest.raises(tutti.InvalidArgument, match="in.device is the CPU, but out.device is GPU"):
        comm.all_reduce(torch.ones(16), square)
    comm.all_reduce(square)  # and goes on


def test_empty_gives_memory_that_outlives_the_communicator(torch):
    comm = tutti.Communicator(0, 1, tutti.NcclIdHolder())
    array = comm.empty((2, 3), "bfloat16", device="cuda")
    assert (array.shape, array.dtype, array.device) == ((2, 3), "bfloat16", comm.device)
    tensor = torch.from_dlpack(array)
    assert tensor.dtype == torch.bfloat16 and tensor.tolist() == [[0, 0, 0], [0, 0, 0]]
    tensor += 1
    comm.all_reduce(array, factor=2)
    assert (tensor == 2).all()
    del comm, array
    tensor += 1
    assert (tensor == 3).all()
    torch.cuda._sleep(100_000_000)
    tensor += 1
    del tensor  # which frees what the GPU still works on
    torch.cuda.synchronize()


def test_empty_speaks_cuda_array_interface(torch, comm):
    array = comm.empty(5, device=comm.device)
    tensor = torch.as_tensor(array, device=comm.device)
    tensor += 1
    comm.all_reduce(array)
    assert (torch.from_dlpack(array) == 1).all()


MODES = ("full", "half", "partial", "sparse")


def _train(comm, mode, on_gpu):
    """Three steps of a mode; the parameters, by name, on the CPU."""
    import torch

    torch.manual_seed(0)
    device = torch.device(comm.device if on_gpu else "cpu")
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 1))
    model = model.to(device)
    sgd = tutti.opt.DistOpt(tutti.opt.SGD(lr=0.1, momentum=0.5), communicator=comm)
    sgd.register_parameters(model.named_parameters())
    generator = torch.Generator().manual_seed(comm.global_rank)
    for _ in range(3):
        x = torch.randn(8, 20, generator=generator).to(device)
        loss = model(x).square().mean()
        if mode == "half":
            sgd.backward_and_update_half(loss)
        elif mode == "partial":
            sgd.backward_and_partial_update(loss)
            sgd.synchronize()
        elif mode == "sparse":
            sgd.backward_and_sparse_update(loss, topK=True, spars=0.1)
        else:
            sgd(loss)
    return {name: value.detach().cpu().numpy() for name, value in model.named_parameters()}


def _train_everywhere(place):
    """The number of ranks; for each mode the parameters on the GPU and on the CPU."""
    import torch

    comm = place.communicator()
    torch.cuda.set_device(comm.device)
    return comm.world_size, {mode: [_train(comm, mode, on_gpu) for on_gpu in (True, False)]
                             for mode in MODES}


@pytest.fixture(scope="module")
def trained():
    """What _train_everywhere() gave on each of two ranks. One launch: PyTorch starts slowly."""
    return launching.run(_train_everywhere, 2, "spawn")


@pytest.mark.parametrize("mode", MODES)
def test_replicas_stay_equal_and_do_what_the_cpu_does(torch, mode, record_property, request):
    (world_size, first), (_, second) = request.getfixturevalue("trained")
    record_property("world_size", world_size)
    assert world_size == 2
    on_gpu, on_cpu = first[mode]
    for name, value in on_gpu.items():
        assert (value == second[mode][0][name]).all(), name
        # With 16 bits, or where another element is the tenth part's last, not to the digit.
        tolerance = 1e-5 if mode in ("full", "partial") else 1e-2
        assert abs(value - on_cpu[name]).max() <= tolerance, name


class Halves(opt.Compressor):
    """Sends float16, by PyTorch: a packet and an average of its own kind, on the GPU alone."""

    def __init__(self, site):
        self.communicator = site.communicator
        self.packets = {}

    def begin(self):
        self.packets.clear()

    def encode(self, bucket):
        import torch

        packet = torch.from_dlpack(bucket.gradients).half()
        self.packets[bucket.begin] = packet
        return bucket.elements, packet.nbytes

    def exchange(self, bucket, stream):
        return self.communicator.all_reduce(self.packets[bucket.begin], op="average", stream=stream)

    def decode(self, bucket):
        import torch

        torch.from_dlpack(bucket.gradients).copy_(self.packets.pop(bucket.begin))


ELEMENTS = 1 << 20
STEPS = 5


def _compress(place):
    """The number of ranks; the sum of a parameter's elements; how many packets were still there."""
    import torch

    comm = place.communicator()
    torch.cuda.set_device(comm.device)
    made = []

    def make(site):
        made.append(Halves(site))
        return made[-1]

    dist = opt.DistOpt(opt.SGD(lr=1.0), communicator=comm, compressor=make)
    params = [torch.zeros(ELEMENTS, device=comm.device) for _ in range(3)]
    dist.register_parameters(params)
    for step in range(STEPS):
        torch.cuda._sleep(20_000_000)  # packets are made, and sent, behind that
        grads = [torch.full((ELEMENTS,), float(place.rank + step + i), device=comm.device)
                 for i in range(len(params))]
        dist(zip(params, grads), threshold=ELEMENTS)
        del grads
        torch.full((3 * ELEMENTS,), float("nan"), device=comm.device)  # where a packet was let go of early
    return comm.world_size, [(p.amin().item(), p.amax().item()) for p in params], len(made[0].packets)


def test_a_compressor_of_tensors(torch, record_property):
    results = launching.run(_compress, 2, "spawn")
    record_property("world_size", results[0][0])
    expected = [-sum(step + i + 0.5 for step in range(STEPS)) for i in range(3)]
    assert results == [(2, [(value, value) for value in expected], 0)] * 2


def test_single_sums_and_update(torch, comm):
    sgd = tutti.opt.DistOpt(tutti.opt.SGD(lr=0.5), communicator=comm)
    weight = torch.zeros(100, device=comm.device)
    sgd.register_parameters([("weight", weight)])
    grad = torch.full((100,), 2.0, device=comm.device)
    sgd.all_reduce(grad)
    sgd.wait()
    sgd.update(weight, grad)
    assert (weight == -1).all()
    both = [torch.ones(3, device=comm.device), torch.ones(5, device=comm.device)]
    for sum_of in (sgd.fused_all_reduce, sgd.fused_all_reduce_half):
        sum_of(both, send=False)
        sum_of(both)
        sgd.wait()
        assert all((tensor == 1).all() for tensor in both)
    residual = torch.zeros(8, device=comm.device)
    sgd.fused_sparsification(both, residual, 2 / 8, True)
    sgd.wait()
    assert torch.cat(both).tolist() == [1, 1, 0, 0, 0, 0, 0, 0]
    assert residual.tolist() == [0, 0, 1, 1, 1, 1, 1, 1]


class _Images:
    """Large enough that to copy a batch takes a while."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return numpy.full((1 << 18,), index, numpy.float32)


def test_batches_are_copied_one_ahead(torch, comm):
    images = _Images()
    loader = data.DataLoader(images, data.RandomSampler(images, 4, seed=1), num_workers=2)
    expected = [[float(image[0]) for image in batch] for batch in loader]
    loader = data.DataLoader(images, data.RandomSampler(images, 4, seed=1), num_workers=2)
    sums = []
    for batch in data.Preloader(loader, comm.device):
        assert batch.is_cuda and batch.shape == (4, 1 << 18)
        torch.cuda._sleep(20_000_000)  # its memory may not be used again before this is over
        sums.append(batch.mean(1))
    assert [means.tolist() for means in sums] == expected


def test_rows_of_a_table_are_where_their_ids_are(torch):
    weight = numpy.arange(40, dtype=numpy.float32).reshape(10, 4)
    table = ps.Embedding("item", 4, optimizer=ps.Sgd(0.5), init=ps.Constant(1.0))
    with ps.start([table], servers="thread", mode=ps.Sync(),
                  communicator=tutti.Communicator(0, 1, tutti.NcclIdHolder())) as fleet:
        bag = ps.torch.EmbeddingBag(table, "sum").cuda()
        ids = torch.tensor([[1, 2], [2, 3]], device="cuda")
        out = bag(ids)
        assert out.is_cuda and out.tolist() == [[2.0] * 4] * 2
        (out * torch.from_numpy(weight[:2]).cuda()).sum().backward()
        fleet.step()
        rows = table.lookup(torch.tensor([1, 2, 3], device="cuda"))
        assert rows.is_cuda
        gradients = numpy.stack([weight[0], weight[0] + weight[1], weight[1]])
        assert (rows.cpu().numpy() == 1 - 0.5 * gradients).all()

"""Arguments of a wrong kind are refused by name and value, before anybody is waited for."""

import enum
import fractions

import numpy
import pytest

import tutti
from tutti import data, distributed, helpers, opt, ps
from tutti._core import ps as core

IMAGES = numpy.zeros((10, 2), numpy.float32)


def alone(**options):
    ticket = () if "communicator" in options else (tutti.NcclIdHolder(), 0, 1)
    return opt.DistOpt(opt.SGD(), *ticket, **options)


@pytest.mark.parametrize("option, value", [
    ("buffSize", "x"), ("buffSize", 1.5), ("buffSize", 0), ("dist_option", 5), ("half", []),
    ("clipping", "x"), ("clipping", 5), ("corr", None), ("missing_as_zero", []),
    ("float64_as_float32", "x"), ("clip_Value", "x"), ("spars", None), ("momentum_correction", []),
    ("clip_norm", "x"), ("clip_norm", numpy.True_), ("warm_up_epochs", 1.5),
    ("warm_up_epochs", -1), ("epoch_steps", "x"), ("timeout", "x"), ("timeout", -1), ("timeout", 2e9)])
def test_options_of_a_dist_opt(option, value):
    with pytest.raises((TypeError, tutti.InvalidArgument)) as refused:
        alone(**{option: value})
    assert str(refused.value).startswith(f"{option} is {value!r}, but must be")


def is_a_whole_number(value):
    """Whether it is taken for the 3 ranks that arrays are divided among."""
    try:
        return len(helpers.data_partition(IMAGES[:9], IMAGES[:9], 0, value)[0]) == 3
    except TypeError as refused:
        assert f"world_size is {value!r}, but must be a whole number" in str(refused)
        return False


def is_a_flag(value):
    """Whether it is taken for True."""
    try:
        ps.Embedding("item", 3, consistent_rows=value)
        return True
    except tutti.InvalidArgument as refused:
        assert f"consistent_rows is {value!r}, but must be True or False" in str(refused)
        return False


def test_whole_numbers_and_flags_of_numpy():
    assert all(map(is_a_whole_number, (3, numpy.int8(3), numpy.uint64(3), numpy.array(3))))
    for value in (True, numpy.True_, numpy.array(True), 3.0, numpy.float64(3), numpy.array(3.7),
                  numpy.array([3, 3]), "3", None):
        assert not is_a_whole_number(value), value
    assert all(map(is_a_flag, (True, 1, numpy.True_, numpy.array(True))))
    for value in (2, 1.0, numpy.array(1.0), numpy.array([True]), "True", None):
        assert not is_a_flag(value), value


def test_whole_numbers_and_flags_of_pytorch():
    torch = pytest.importorskip("torch")
    assert is_a_whole_number(torch.tensor(3)) and is_a_flag(torch.tensor(True))
    for value in (torch.tensor(True), torch.tensor(3.7), torch.tensor([3, 3])):
        assert not is_a_whole_number(value) and is_a_flag(value) == (value.dtype == torch.bool)


def test_what_a_dist_opt_joins():
    for arguments, reason in [(("x", 0, 1), "nccl_id is 'x'"),
                              ((tutti.NcclIdHolder(), "x", 1), "local_rank is 'x'"),
                              ((tutti.NcclIdHolder(), 0, 1.5), "world_size is 1.5")]:
        with pytest.raises(TypeError, match=f"{reason}, but must be"):
            opt.DistOpt(opt.SGD(), *arguments)


def test_arguments_of_a_step():
    weight = numpy.zeros(3, numpy.float32)
    with pytest.raises(TypeError, match="sparse is a int, but must be an iterable"):
        alone().register_parameters([weight], sparse=5)
    dist_opt = alone()
    dist_opt.register_parameters([weight])
    loss = [(weight, weight + 1)]
    for act, reason in [
        (lambda: dist_opt(loss, "x"), "threshold is 'x'"),
        (lambda: dist_opt.backward_and_update(loss, 1.5), "threshold is 1.5"),
        (lambda: dist_opt.backward_and_update_half(loss, clipping=5), "clipping is 5"),
        (lambda: dist_opt.backward_and_update_half(loss, clip_Value="x"), "clip_Value is 'x'"),
        (lambda: dist_opt.backward_and_sparse_update(loss, spars=None), "spars is None"),
        (lambda: dist_opt.backward_and_sparse_update(loss, topK="x"), "topK is 'x'"),
        (lambda: dist_opt.backward_and_sparse_update(loss, corr=[]), r"corr is \[\]"),
    ]:
        with pytest.raises((TypeError, tutti.InvalidArgument), match=f"{reason}, but must be"):
            act()
    assert not weight.any()


@pytest.mark.parametrize("act, reason", [
    (lambda: data.ArrayDataset(IMAGES, 5), r"arrays\[1\] is 5"),
    (lambda: data.SequentialSampler(5), "dataset is 5"),
    (lambda: data.RandomSampler(None), "dataset is None"),
    (lambda: data.ReplacementSampler(5), "dataset is 5"),
    (lambda: data.ReplacementSampler(IMAGES, weights="x"), "weights is 'x'"),
    (lambda: data.Infinite(5), "sampler is 5"),
    (lambda: data.DataLoader(5), "dataset is 5"),
    (lambda: data.DataLoader(IMAGES, 5), "sampler is 5"),
    (lambda: data.DataLoader(IMAGES, "x"), "sampler is 'x'"),
    (lambda: data.DataLoader(IMAGES, transform=5), "transform is 5"),
    (lambda: data.DataLoader(IMAGES, collator="x"), "collator is 'x'"),
    (lambda: data.SharedDataset(5, None), "load is 5"),
    (lambda: data.SharedDataset(lambda: IMAGES, None), "communicator is None"),
    (lambda: distributed.new_group(5), "ranks is 5"),
    (lambda: distributed.new_group("x"), "ranks is 'x'"),
    (lambda: distributed.new_group(["x"]), r"ranks\[0\] is 'x'"),
    (lambda: distributed.group_barrier(5), "group is 5"),
    (lambda: distributed.functional.all_reduce_sum(IMAGES, 5), "group is 5"),
    (lambda: distributed.functional.gather(IMAGES, axis="x"), "axis is 'x'"),
    (lambda: distributed.functional.all_to_all(IMAGES, split_axis=None), "split_axis is None"),
    (lambda: distributed.functional.remote_send(IMAGES, "x"), "dest_rank is 'x'"),
    (lambda: distributed.functional.remote_recv(None), "src_rank is None"),
    (lambda: distributed.bcast_list_(5), "params is 5"),
    (lambda: distributed.bcast_list_([IMAGES], 5), "group is 5"),
    (lambda: distributed.make_allreduce_cb("sum", 5), "group is 5"),
    (lambda: distributed.launcher(print, n_gpus="x"), "n_gpus is 'x'"),
    (lambda: distributed.launcher(print, world_size=1.5), "world_size is 1.5"),
    (lambda: distributed.launcher(print, rank_start=None), "rank_start is None"),
    (lambda: distributed.init_process_group(5, 5000, 1, 0), "master_ip is 5"),
    (lambda: distributed.init_process_group("localhost", "x", 1, 0), "port is 'x'"),
    (lambda: distributed.init_process_group("localhost", 5000, "x", 0), "world_size is 'x'"),
    (lambda: distributed.init_process_group("localhost", 5000, 1, 0.5), "rank is 0.5"),
    (lambda: helpers.data_partition(5, IMAGES, 0, 1), "dataset_x is 5"),
    (lambda: helpers.data_partition(IMAGES, IMAGES, "x", 1), "global_rank is 'x'"),
    (lambda: helpers.data_partition(IMAGES, IMAGES, 0, 1.5), "world_size is 1.5"),
    (lambda: helpers.broadcast_parameters(5), "params is 5"),
    (lambda: helpers.broadcast_parameters([IMAGES], "x"), "communicator is 'x'"),
    (lambda: tutti.save(5, alone()), "path is 5"),
    (lambda: tutti.save("path", 5), "opt is 5"),
    (lambda: tutti.load(None, alone()), "path is None"),
    (lambda: tutti.load("path", None), "opt is None")])
def test_other_arguments(act, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TypeError, match=f"{reason}, but must "):
        act()
    assert not list(tmp_path.iterdir())


def communicator():
    return tutti.Communicator(0, 1, tutti.NcclIdHolder())


@pytest.mark.parametrize("act, reason", [
    (lambda: opt.SGD(lr="x"), "lr is 'x'"),
    (lambda: opt.SGD(0.1, numpy.zeros(2)), r"momentum is array\(\[0., 0.\]\)"),
    (lambda: setattr(opt.SGD(), "lr", None), "lr is None"),
    (lambda: opt.SGD(nesterov="x"), "nesterov is 'x'"),
    (lambda: opt.Adam(lr=True), "lr is True"),
    (lambda: opt.Adam(lr=1e300), r"lr is 1e\+300"),
    (lambda: opt.Adam(lr=10**400), "lr is 1000"),
    (lambda: opt.Adam(lr=numpy.array("x")), r"lr is array\('x'"),
    (lambda: opt.Adam(lr=numpy.complex64(1)), r"lr is .*1\+0j"),
    (lambda: opt.AdamW(betas=0.9), "betas is 0.9"),
    (lambda: opt.AdamW(betas=(0.9,)), r"betas is \(0.9,\)"),
    (lambda: opt.AdamW(betas=(0.9, False)), r"betas\[1\] is False"),
    (lambda: opt.AdamW(betas=(1e300, 0.9)), r"betas\[0\] is 1e\+300"),
    (lambda: setattr(opt.Adam(), "betas", "x"), "betas is 'x'"),
    (lambda: opt.Adagrad(lr_decay=[]), r"lr_decay is \[\]"),
    (lambda: ps.Sgd("x"), "lr is 'x'"),
    (lambda: ps.Adagrad(row_wise=numpy.nan), "row_wise is nan"),
    (lambda: ps.CountFilter(1.5), "count is 1.5"),
    (lambda: ps.Geo(2**63), "push_steps is 9223372036854775808"),
    (lambda: ps.Async(staleness="x"), "staleness is 'x'"),
    (lambda: tutti.Communicator(0, 1, None), "id is None"),
    (lambda: tutti.Communicator(0, "x", tutti.NcclIdHolder()), "world_size is 'x'"),
    (lambda: tutti.Communicator(0, 1, tutti.NcclIdHolder(), timeout="x"), "timeout is 'x'"),
    (lambda: tutti.Communicator.from_endpoints(5, 0), "endpoints is 5"),
    (lambda: tutti.Communicator.from_endpoints(["a:1", 5], 0), r"endpoints is \['a:1', 5\]"),
    (lambda: tutti.Communicator.from_endpoints("a:1", 0.5), "trainer_id is 0.5"),
    (lambda: tutti.NcclIdHolder.parse(5), "text is 5"),
    (lambda: communicator().all_reduce(IMAGES.copy(), op=5), "op is 5"),
    (lambda: communicator().all_reduce(IMAGES.copy(), factor="x"), "factor is 'x'"),
    (lambda: communicator().all_reduce(IMAGES.copy(), stream=5), "stream is 5"),
    (lambda: communicator().broadcast(IMAGES.copy(), 1.5), "root is 1.5"),
    (lambda: communicator().broadcast(IMAGES.copy(), 2**40), "root is 1099511627776"),
    (lambda: communicator().gather(IMAGES, IMAGES.copy(), counts="x"), "counts is 'x'"),
    (lambda: communicator().gather(IMAGES, IMAGES.copy(), counts=[numpy.float32(3.9)]),
     r"counts\[0\] is .*3.9"),
    (lambda: communicator().gather(IMAGES, IMAGES.copy(), counts=(numpy.True_,)),
     r"counts\[0\] is "),
    (lambda: communicator().send(IMAGES, "x"), "destination is 'x'"),
    (lambda: communicator().recv(IMAGES.copy(), 0, tag=2**31), "tag is 2147483648"),
    (lambda: tutti.Recv(IMAGES, None), "source is None"),
    (lambda: communicator().exchange(5), "messages is 5"),
    (lambda: communicator().split(None), "color is None"),
    (lambda: communicator().group([0, "x"]), r"ranks\[1\] is 'x'"),
    (lambda: communicator().group([False]), r"ranks\[0\] is False"),
    (lambda: communicator().group(numpy.array([0.7])), r"ranks\[0\] is .*0.7"),
    (lambda: communicator().group([2**40]), r"ranks\[0\] is 1099511627776"),
    (lambda: communicator().group(0), "ranks is 0"),
    (lambda: communicator().abort(5), "reason is 5"),
    (lambda: tutti.Store(None), "communicator is None"),
    (lambda: tutti.Store(communicator()).set("key", 5), "value is 5"),
    (lambda: tutti.Store(communicator()).set("key", IMAGES[:, 1]), r"value is array\("),
    (lambda: tutti.Store(communicator()).add("key", 1.5), "delta is 1.5"),
    (lambda: tutti.Store(communicator()).get(5), "key is 5"),
    (lambda: tutti.Store(communicator()).get("key", "x"), "timeout is 'x'"),
    (lambda: tutti.Timeline(5), "path is 5"),
    (lambda: tutti.Timeline("run.json", 5), "communicator is 5"),
    (lambda: opt.DistOpt(opt.SGD(), communicator=communicator(), half="\ud800"), r"half is '\\ud8"),
    (lambda: tutti.Store(communicator()).get("\ud800"), r"key is '\\ud800'"),
    (lambda: tutti.NcclIdHolder.parse("\ud800"), r"text is '\\ud800'"),
    (lambda: tutti.Communicator.from_endpoints(["\ud800"], 0), r"endpoints is '\\ud800'"),
    (lambda: tutti.Timeline("\ud800"), r"path is '\\ud800'"),
    (lambda: communicator().empty(3, device="\ud800"), r"device is '\\ud800'"),
    (lambda: core.TableSpec("\ud800"), r"name is '\\ud800'"),
    (lambda: helpers.data_partition(IMAGES, IMAGES, 0, -1), "world_size is -1")])
def test_arguments_of_what_is_written_in_cpp(act, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((TypeError, tutti.InvalidArgument), match=rf"^{reason}[\s\S]*, but must "):
        act()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("arguments, text", [
    ({"rule": 5}, "rule is 5, but must be of Sgd, Momentum, Adagrad or Adam"),
    ({"split": None}, "split is None, but must be of Split"),
    ({"name": 5}, "name is 5, but must be of str"),
    ({"name": "\ud800"}, r"name is '\ud800', but must be valid Unicode, without half of a surrogate "
     "pair")])
def test_what_an_argument_must_be_is_said(arguments, text):
    with pytest.raises((TypeError, tutti.InvalidArgument)) as raised:
        core.TableSpec(**arguments)
    assert str(raised.value) == text


class Root(enum.IntEnum):
    FIRST = 0


def test_arguments_of_other_kinds_that_fit(tmp_path):
    assert opt.SGD(lr=numpy.array(0.5, numpy.float16)).lr == 0.5
    assert opt.SGD(lr=fractions.Fraction(1, 2)).lr == 0.5
    assert opt.SGD(0.1, 0.9, nesterov=numpy.True_).nesterov
    assert opt.Adam(betas=numpy.array([0.5, 0.25])).betas == (0.5, 0.25)
    assert ps.CountFilter(numpy.int64(3)).count == 3
    one = communicator()
    data = numpy.ones(3, numpy.float32)
    one.broadcast(data, root=Root.FIRST)
    one.broadcast(data, root=numpy.array(0))
    one.gather(data, data.copy(), counts=numpy.array([3]))
    assert one.group(range(1)).world_size == 1
    tutti.Timeline(tmp_path / "run.json")


def test_what_an_iterable_raises_is_told():
    def endpoints(error):
        yield "a:1"
        raise error

    for error in KeyboardInterrupt, OSError:
        with pytest.raises(error):
            tutti.Communicator.from_endpoints(endpoints(error), 0)

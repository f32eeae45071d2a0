"""tutti.ps as Python has it: what is refused, and by which name; what is pushed whole or not at all."""

import copy
import logging
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import threading
import time

import numpy
import pytest

import launching
import tutti
from tutti import ps
from tutti.ps import _dispatch

DIM = 2
LIMIT = 60  # seconds for one job


def table(**options):
    return ps.Embedding("item", DIM, **{"optimizer": ps.Sgd(1.0), "init": ps.Constant(0.0), **options})


def weights():
    return {"w": numpy.zeros(2, numpy.float32), "b": numpy.zeros(3, numpy.float32)}


def alone(tables, **options):
    return ps.start(tables, servers="thread",
                    communicator=tutti.Communicator(0, 1, tutti.NcclIdHolder()), **options)


@pytest.mark.parametrize("gradients", [
    lambda params: {"w": numpy.ones(2), "b": numpy.ones(2)},
    lambda params: {"w": numpy.ones(2), "x": numpy.ones(2)},
    lambda params: [(params["w"], numpy.ones(2)), (params["b"], numpy.ones(2))],
    lambda params: {"w": numpy.ones(2), "b": numpy.ones(2)}.items()])
def test_a_refused_push_of_several_gradients_pushes_none(gradients):
    params = weights()
    net = ps.Dense(params, optimizer=ps.Sgd(1.0))
    with alone([net], mode=ps.Sync()) as fleet:
        with pytest.raises(tutti.InvalidArgument):
            net.push(gradients(params))
        fleet.step()
        net.pull()
    assert not params["w"].any()


def test_a_last_checkpoint_that_fails_is_raised(tmp_path):
    def spoilt(name, error):
        folder = tmp_path / name
        with alone([table()], checkpoint=folder, save_at_end=True):
            (folder / "manifest" / "in_the_way").mkdir(parents=True)
            if error:
                raise error

    with pytest.raises(tutti.InvalidArgument, match="manifest: cannot be replaced"):
        spoilt("saved", None)
    with pytest.raises(KeyError):  # what the block has raised is not replaced
        spoilt("other", KeyError("own"))
    with pytest.raises(tutti.InvalidArgument, match="neither .*every nor .*save_at_end is set"):
        alone([table()], checkpoint=tmp_path)


def test_a_push_without_gradients_is_refused():
    net = ps.Dense(weights())
    with alone([net]):
        with pytest.raises(tutti.InvalidArgument, match="none of the parameters w, b has a .grad"):
            net.push()
        net.push({})


def test_an_iterator_of_tables():
    item, net = table(), ps.Dense(weights())
    with alone(one for one in [item, net]):
        assert item.lookup([1]).shape == (1, DIM)
        net.pull()


def test_a_table_is_of_one_fleet_at_a_time():
    item, net = table(), ps.Dense(weights())
    with alone([item, net]):
        for again in (item, net):
            with pytest.raises(tutti.InvalidArgument, match="is another fleet's, which must stop"):
                alone([again])
        assert not item.lookup([1]).any()
    with alone([item, net]):
        assert not item.lookup([1]).any()


def test_a_mask_is_no_ids():
    item = table()
    with alone([item]):
        with pytest.raises(TypeError, match="ids is of bool, but must be of int64"):
            item.lookup(numpy.array([True, False]))
        assert item.lookup(numpy.zeros(0, bool)).shape == (0, DIM)


@pytest.mark.parametrize("make, reason", [
    (lambda: alone([table()], mode=ps.Sync), "mode is .*Sync.*must be of Sync, Async, HalfAsync or Geo"),
    (lambda: alone([table()], mode="sync"), "mode is 'sync'"),
    (lambda: alone([table()], every=0.5), "every is 0.5"),
    (lambda: alone([table()], seed=-1), "seed is -1"),
    (lambda: alone([table()], slicing=5), "slicing is 5"),
    (lambda: ps.start([table()], servers=1.5), "servers is 1.5"),
    (lambda: ps.start([table()], servers=[1]), r"servers is \[1\]"),
    (lambda: ps.start([table()], servers="thread", communicator="x"), "communicator is 'x'"),
    (lambda: ps.start(table()), "tables is <tutti.ps.Embedding item.*an iterable of Embedding and Dense"),
    (lambda: ps.start(None), "tables is None"),
    (lambda: ps.start([table(), 5]), r"tables\[1\] is 5"),
    (lambda: alone([table()], wire=[]), r"wire is \[\], but must be 'float32', 'float16' or 'bfloat16'"),
    (lambda: alone([table()], timeout="x"), "timeout is 'x'"),
    (lambda: alone([table()], timeout=0), "timeout is 0"),
    (lambda: alone([table()], save_at_end="no"), "save_at_end is 'no'"),
    (lambda: ps.Slicing(split_method="x"), "split_method is 'x'"),
    (lambda: ps.Slicing(min_block_size="x"), "min_block_size is 'x'"),
    (lambda: ps.Slicing(min_block_size=0), "min_block_size is 0"),
    (lambda: ps.Slicing("no"), "slice_var_up is 'no'"),
    (lambda: ps.Dense(5), "parameters is 5"),
    (lambda: ps.Dense("weight"), "parameters is 'weight'"),
    (lambda: ps.Dense([[1.0]]), r"parameter 0 is \[1.0\], but must be an array of float32"),
    (lambda: ps.Dense({"w": 1.0}), "parameter w is 1.0, but must be an array"),
    (lambda: ps.Dense({3: numpy.zeros(2, numpy.float32)}), "a name in parameters is 3"),
    (lambda: ps.Dense([("w",)]), r"parameters\[0\] is \('w',\), but must be a pair \(name, array\)"),
    (lambda: ps.Dense(weights(), name=3), "name is 3"),
    (lambda: ps.Dense(weights(), shared="x"), "shared is 'x'"),
    (lambda: table(consistent_rows="no"), "consistent_rows is 'no'"),
    (lambda: table(split=[]), r"split is \[\], but must be 'hash' or 'mod'"),
    (lambda: table(dict_size=10, padding_idx=10), "padding_idx is 10, but must be below dict_size, 10"),
    (lambda: table(optimizer="sgd"), "optimizer is 'sgd'"),
    (lambda: ps.Dense(weights(), optimizer="sgd"), "optimizer is 'sgd'"),
    (lambda: table(init=0.5), "init is 0.5"),
    (lambda: table(entry=5), "entry is 5"),
    (lambda: table(evict=ps.ShowClick()), "evict is ShowClick.* must be of Evict"),
    (lambda: ps.Embedding("item", 2.5), "dim is 2.5"),
    (lambda: ps.Embedding(5, 2), "name is 5"),
    (lambda: ps.Embedding("item\udc80", 2), r"name is 'item\\udc80', but must be valid Unicode"),
    (lambda: ps.Dense({"w\udc80": numpy.zeros(2, numpy.float32)}), "a name in parameters is 'w"),
    (lambda: ps.Dense(weights(), name="\udc80"), "name is .* without half of a surrogate"),
    (lambda: alone([table()], load="\udc80"), "load is .* without half of a surrogate"),
    (lambda: ps.start([table()], servers=1, communicator=tutti.Communicator(0, 1, tutti.NcclIdHolder())),
     "servers is 1, but of 1 rank none is left for servers.*servers=\"thread\""),
    (lambda: table(padding_idx="0"), "padding_idx is '0'"),
    (lambda: table(dict_size=True), "dict_size is True")])
def test_refusals_name_the_argument(make, reason):
    with pytest.raises((TypeError, tutti.InvalidArgument), match=reason):
        make()


def test_refusals_of_pushes_and_lookups_name_the_argument():
    item, net = table(), ps.Dense(weights())
    with alone([item, net]):
        for act, reason in [
            (lambda: net.push(5), "gradients is 5, but must be a mapping .* or a loss"),
            (lambda: net.push("w"), "gradients is 'w'"),
            (lambda: net.push([5]), "one of gradients is 5, but must be a pair .parameter, gradient."),
            (lambda: net.push(iter([5])), "one of gradients is 5"),
            (lambda: net.push({"w": [[1], [1, 2]]}), "the gradient of w is .*, which is no array"),
            (lambda: net.push({"w": "x"}), "the gradient of w has shape"),
            (lambda: net.push({5: [1]}), "gradients has 5, but the parameters are w, b"),
            (lambda: item.lookup([[1], [1, 2]]), r"ids is .*, which is no array"),
            (lambda: item.lookup(None), "ids is of object"),
            (lambda: item.lookup([1], out=5), "out is 5, but must be an array"),
            (lambda: item.push([1], "x"), "gradients has shape"),
            (lambda: item.push([1], [["x", "y"]]), "gradients is of <U1"),
            (lambda: item.push([1], [[1, 1]], shows=[1, 2]), "shows has shape"),
        ]:
            with pytest.raises((TypeError, tutti.InvalidArgument), match=reason):
                act()


class Nowhere:
    """A folder without a path."""

    def __fspath__(self):
        return b"nowhere"


@pytest.mark.parametrize("folder", [None, 3, "", b"folder", "\ud800", Nowhere()])
def test_a_folder_is_a_path(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with alone([table()]) as fleet:
        with pytest.raises((TypeError, tutti.InvalidArgument), match="folder is .*, but must be"):
            fleet.save(folder)
        fleet.save(pathlib.Path("folder"))
    for name in ("load", "checkpoint"):
        if folder is not None:
            with pytest.raises((TypeError, tutti.InvalidArgument), match=f"{name} is .*, but must be"):
                alone([table()], **{name: folder})
    assert [one.name for one in tmp_path.iterdir()] == ["folder"]


def test_a_slicing_without_a_method_takes_turns():
    net = ps.Dense({name: numpy.zeros(30, numpy.float32) for name in "ab"})
    slicing = ps.Slicing(min_block_size=10, split_method=None)
    chosen = _dispatch.choose(slicing, net.spec(ps.Sgd(1.0), False), 2, [])
    servers = [chosen[block] for block in sorted(chosen, key=lambda block: (block.parameter, block.number))]
    assert servers == [0, 1, 0, 1]
    with alone([net], slicing=slicing):
        net.pull()


def test_copies_of_a_table_are_itself_and_pickles_its_description():
    item = table(entry=ps.CountFilter(2), split="mod")
    with alone([item]):
        assert copy.deepcopy([item])[0] is item and copy.copy(item) is item
        again = pickle.loads(pickle.dumps(item))
    with pytest.raises(tutti.InvalidArgument, match="table item is of no worker"):
        again.lookup([1])
    assert again.spec(ps.Sgd()) == item.spec(ps.Sgd())


def test_rows_are_the_caller_s_as_long_as_it_has_them():
    item = table(init=ps.Uniform(-1, 1))
    with alone([item]):
        rows = [item.lookup(numpy.arange(n, n + 7)) for n in range(5)]
        views = [item.lookup(numpy.arange(n, n + 7))[2:] for n in range(5)]
        wanted = item.lookup(numpy.arange(11)).copy()
        for n in range(5):
            numpy.testing.assert_array_equal(rows[n], wanted[n:n + 7])
            numpy.testing.assert_array_equal(views[n], wanted[n + 2:n + 7])


def test_the_memory_of_rows_that_are_gone_is_used_again():
    item = table()
    with alone([item]):
        first, second = item.lookup([1]), item.lookup([2])
        number, view = id(second), first[:, 1:]
        del first
        third = item.lookup([3])
        assert view.base is not third
        del second
        assert id(item.lookup([4])) == number
        assert item.lookup([[5]]).shape == (1, 1, DIM)
        item.lookup([6]).setflags(write=False)
        assert item.lookup([7]).flags.carray and item.lookup([8]).flags.carray


def test_servers_beside_the_roles_of_the_environment_are_refused(monkeypatch):
    monkeypatch.setenv("TRAINING_ROLE", "TRAINER")
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "2")
    monkeypatch.setenv("PADDLE_PSERVERS_IP_PORT_LIST", "127.0.0.1:1")
    for servers in ("thread", 2):
        with pytest.raises(tutti.InvalidArgument, match=f"servers is {servers!r}, but .* 2 workers and "
                                                        "1 servers"):
            ps.start([table()], servers=servers, timeout=1)


class Interrupting(logging.Handler):
    """Keeps what is logged, and presses Ctrl-C a little after the first line."""

    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        if not self.records:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        self.records.append(record)


def leaving(place):
    """Worker 0 ends by an exception, and is interrupted while its server has worker 1."""
    item = table()
    fleet = ps.start([item], servers="thread", communicator=place.communicator(), mode=ps.Async())
    if place.rank == 0:
        interrupting = Interrupting()
        logging.getLogger("tutti").addHandler(interrupting)
        with pytest.raises(KeyboardInterrupt):
            with fleet:
                raise ValueError("no more data")
        said = interrupting.records[0]
        assert "worker 0 leaves by an exception" in said.getMessage()
        assert str(said.exc_info[1]) == "no more data"
        return
    began = time.monotonic()
    with pytest.raises(tutti.PeerLost, match="server 0"):
        with fleet:
            while time.monotonic() < began + 20:
                item.push(numpy.arange(50), numpy.ones((50, DIM)))
                fleet.step()
                fleet.flush()


def test_ctrl_c_ends_a_worker_whose_server_has_others_left():
    launching.run(leaving, 2, "fork")


KEEPS_GOING = """
from tutti import ps
item = ps.Embedding("item", 2)
with ps.start([item], mode=ps.Async()) as fleet:
    if fleet.is_server:
        fleet.serve()
    else:
        fleet.barrier()
        if fleet.worker_index == 0:
            raise ValueError("no more data " + 1000 * chr(228))  # is cut
        while fleet.lost_workers() != [0]:  # which the answer to a push tells
            item.push([1], [[1.0, 1.0]])
            fleet.step()
            fleet.flush()
        open("went_on", "w").close()
"""


def test_tutti_run_keeps_the_others_going(tmp_path):
    (tmp_path / "train.py").write_text(KEEPS_GOING)
    done = subprocess.run([sys.executable, "-m", "tutti.run", "--keep_going", "--server_num=1",
                           "--worker_num=2", "train.py"], cwd=tmp_path, text=True,
                          capture_output=True, timeout=LIMIT)
    assert done.returncode == 1 and "ValueError: no more data" in done.stdout + done.stderr
    assert pathlib.Path(tmp_path, "went_on").exists(), done.stdout + done.stderr
    assert "worker 0 is lost: it has left without stop: ValueError: no more data \u00e4" in done.stderr, done.stderr
    assert "\u00e4; 1 go on" in done.stderr, done.stderr

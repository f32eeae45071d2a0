"""Timelines, the flight recorder and lateness, as a program sees them, also after a rank was killed."""

import collections
import json
import os
import signal
import time

import numpy
import pytest

import launching
import tutti
from tutti import opt


def slices_of(path):
    """Of each rank the names of its slices, in order of time."""
    events = json.loads(path.read_text())["traceEvents"]
    ranks = collections.defaultdict(list)
    for event in sorted((e for e in events if e["ph"] == "X"), key=lambda e: e["ts"]):
        assert event["dur"] >= 0
        ranks[event["pid"]].append(event["name"])
    return ranks


def steps_in_a_timeline(place, folder):
    comm = place.communicator()
    sgd = opt.DistOpt(opt.SGD(lr=0.1), communicator=comm)
    parameters = [numpy.ones(n, numpy.float32) for n in (3000, 5, 700)]
    sgd.register_parameters(parameters)
    with tutti.Timeline(folder / "run.json", comm):
        for _ in range(3):
            sgd.backward_and_update(((p, p) for p in reversed(parameters)), threshold=1000)
    comm.barrier()
    ranks = slices_of(folder / "run.json")
    assert sorted(ranks) == list(range(comm.world_size))
    for names in ranks.values():
        assert names.count("step") == names.count("backward") == 3
        for part in ("encode", "exchange", "all_reduce", "decode", "update"):
            assert names.count(part) == 6, names  # two buckets a step
    comm.barrier()


def test_a_timeline_has_the_parts_of_steps(on_ranks, tmp_path):
    on_ranks(steps_in_a_timeline, tmp_path)


def late_by(place):
    comm = place.communicator()
    for _ in range(10):
        if comm.global_rank == 0:
            time.sleep(0.01)
        comm.barrier()
    return comm.lateness()


def test_lateness_is_the_same_on_all_ranks(on_ranks):
    for late in on_ranks(late_by):
        assert len(late) > 0
        if len(late) > 1:
            assert late[0] > 0.04


def dies(place, folder):
    os.environ["TUTTI_FLIGHT"] = str(folder / "flights")
    os.environ["TUTTI_TIMELINE"] = str(folder / "run.json")
    comm = place.communicator()
    data = numpy.ones(4, numpy.float32)
    for _ in range(5):
        comm.all_reduce(data)
    if comm.global_rank == 1:
        until = time.monotonic() + 20  # what is not written yet is lost with a rank that is killed
        while slices_of(folder / "run.json")[1].count("all_reduce") < 5:
            assert time.monotonic() < until
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(tutti.PeerLost):
        comm.broadcast(data, root=0)
    comm.close()


def test_a_killed_rank_is_in_the_timeline_and_in_the_flight(tmp_path):
    outcomes, codes = launching.outcomes_of(dies, 3, "fork", tmp_path)
    assert [outcome and outcome[0] for outcome in outcomes] == ["value", None, "value"], outcomes
    assert codes == [0, -signal.SIGKILL, 0]
    [path] = (tmp_path / "flights").iterdir()
    flight = json.loads(path.read_text())
    assert flight["reason"].startswith("lost rank 1: its process has ended")
    assert flight["world_size"] == 3
    by_rank = {rank["rank"]: rank for rank in flight["ranks"]}
    assert by_rank[1]["condition"] == "its process has ended"
    lasts = {number: rank["calls"][-1] for number, rank in by_rank.items()}
    assert all(last["begun_ns"] <= flight["now_ns"] for last in lasts.values())
    done = ("all_reduce", "done")
    in_broadcast = [("broadcast", state) for state in ("running", "failed")]
    found = {number: (last["operation"], last["state"]) for number, last in lasts.items()}
    assert found[1] == done
    # One of the two has found out, inside the broadcast; the other may not have reached it yet.
    assert all(found[number] in [done, *in_broadcast] for number in (0, 2))
    assert any(found[number] in in_broadcast
               and by_rank[number]["reached"] == by_rank[1]["reached"] + 1 for number in (0, 2))

    ranks = slices_of(tmp_path / "run.json")
    assert [ranks[rank].count("all_reduce") for rank in (0, 1, 2)] == [5, 5, 5]


@pytest.mark.parametrize("name", ["TUTTI_FLIGHT", "TUTTI_TIMELINE"])
def test_a_wrong_path_is_refused_by_name(name, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(name, str(tmp_path / "file" / "below"))
    with pytest.raises(tutti.InvalidArgument, match=f"{name} is '{tmp_path}/file/below'"):
        tutti.Communicator(0, 1, tutti.NcclIdHolder())
    assert (tmp_path / "file").read_text() == ""


def test_one_timeline_of_all_communicators_at_a_time(tmp_path):
    with tutti.Timeline(tmp_path / "run.json"):
        with pytest.raises(tutti.InvalidArgument, match="a Timeline already"):
            tutti.Timeline(tmp_path / "other.json")
        for _ in range(2):
            comm = tutti.Communicator(0, 1, tutti.NcclIdHolder())
            comm.barrier()
    ranks = slices_of(tmp_path / "run.json")
    assert [names.count("barrier") for names in ranks.values()] == [1, 1]
    comm.barrier()
    assert slices_of(tmp_path / "run.json") == ranks

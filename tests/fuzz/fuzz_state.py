"""Fuzzes the dictionaries that DistOpt.load_state() takes."""

import copy
import math

import numpy

from tutti import InvalidArgument, NcclIdHolder, opt

REFUSALS = (InvalidArgument, TypeError, ValueError)

ODD = (None, "x", b"x", 3, -1, 0.5, 2.0**53, 2.0**60, math.nan, math.inf, 1 << 80, object(), [],
       {}, (), True, numpy.float32(3), numpy.int64(2), numpy.ones(8), numpy.ones(8, numpy.float32),
       numpy.ones((2, 4), numpy.float32), numpy.ones(16, numpy.float32)[::2],
       numpy.full(8, math.nan, numpy.float32), numpy.empty(0, numpy.float32), "\ud800")
NAMES = ("momentum", "started", "steps", "dist.rank", "dist.world_size", "dist.layout",
         "dist.residual", "dist.velocity", "dist.master", "dist.sparse_steps", "dist.partial_steps",
         "dist.partition_elements", "arrays", "numbers", "", "\0", "\ud800")


def same(one, other):
    return (one["numbers"] == other["numbers"] and one["arrays"].keys() == other["arrays"].keys()
            and all(array.tobytes() == other["arrays"][name].tobytes()
                    for name, array in one["arrays"].items()))


class Fuzzer:
    def __init__(self):
        self.weights, self.bias = numpy.ones((2, 3), numpy.float32), numpy.ones(2, numpy.float32)
        self.opt = opt.DistOpt(opt.SGD(lr=0.1, momentum=0.9), nccl_id=NcclIdHolder(), local_rank=0,
                               world_size=1)
        self.opt.register_parameters([self.weights, self.bias])
        self.states = [self.opt.state()]
        for step in (self.opt.backward_and_update, self.opt.backward_and_partial_update,
                     self.opt.backward_and_sparse_update):
            step(self.pairs())
            self.states.append(self.opt.state())

    def pairs(self):
        return [(array, numpy.ones_like(array)) for array in (self.bias, self.weights)]

    def make(self, rng):
        state = copy.deepcopy(rng.choice(self.states))
        for _ in range(rng.randrange(3)):
            state = self.mutate(rng, state)
        return state

    def decode(self, state):
        self.opt.load_state(self.states[0])
        before = self.opt.state()
        try:
            self.opt.load_state(state)
        except BaseException:
            assert same(self.opt.state(), before), "a state was refused, and loaded in part"
            raise
        after = self.opt.state()
        self.opt.load_state(after)
        assert same(self.opt.state(), after), "the state becomes another when it is loaded again"
        self.opt.backward_and_update(self.pairs())

    def mutate(self, rng, state):
        if not isinstance(state, dict) or rng.random() < 0.05:
            return rng.choice(ODD)
        part = state.get(rng.choice(("arrays", "numbers")))
        target = part if isinstance(part, dict) and rng.random() < 0.8 else state
        known = rng.choice(list(target)) if target else "x"
        kind = rng.randrange(4)
        if kind == 0:
            target[known] = rng.choice(ODD)
        elif kind == 1:
            target[rng.choice(NAMES)] = rng.choice(ODD)
        elif kind == 2:
            target.pop(known, None)
        else:
            key = rng.choice((None, 3, b"steps", (1,), rng.choice(NAMES)))
            target[key] = target.pop(known, 1.0)
        return state

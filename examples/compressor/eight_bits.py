"""A compressor of one's own: a byte an element, and what that loses is kept for the next step."""

import numpy

from tutti import opt


class EightBits(opt.Compressor):
    def __init__(self, site):
        self.communicator = site.communicator
        self.lost = numpy.zeros(site.elements, numpy.float32)
        self.packets = {}  # under way

    def encode(self, bucket):
        lost = self.lost[bucket.begin : bucket.begin + len(bucket.gradients)]
        lost += bucket.gradients
        unit = numpy.maximum(abs(lost).max(keepdims=True), numpy.float32(1e-30)) / 127
        own = numpy.rint(lost / unit).astype(numpy.int8)
        lost -= own * unit
        ranks = self.communicator.world_size
        self.packets[bucket.begin] = (unit, numpy.empty(ranks, numpy.float32), own,
                                      numpy.empty((ranks, len(own)), numpy.int8))
        return bucket.elements, own.nbytes + unit.nbytes

    def exchange(self, bucket, stream):
        unit, units, own, everything = self.packets[bucket.begin]
        self.communicator.all_gather(unit, units, stream=stream)
        return self.communicator.all_gather(own.view(numpy.uint8), everything.view(numpy.uint8),
                                            stream=stream)

    def decode(self, bucket):
        _, units, _, everything = self.packets.pop(bucket.begin)
        bucket.gradients = sum(unit * of_rank for unit, of_rank in zip(units, everything))
        bucket.gradients /= len(units)

    def state(self):
        return {"arrays": {"lost": self.lost}, "numbers": {}}

    def load_state(self, state):
        self.lost[:] = state["arrays"]["lost"]

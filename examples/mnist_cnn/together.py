"""How ranks fail: all of them, and one says why."""

import sys

import numpy as np
from options import OptionError

import tutti


def together(comm, action):
    """What `action`, which must not communicate, returns. If it fails on some ranks, the program
    ends on all, so that nobody waits for a rank that has given up; the lowest of them says why."""
    result = fault = None
    failed = np.array([comm.world_size])
    try:
        result = action()
    except (OSError, ValueError, tutti.Error) as error:
        fault = error
        failed[0] = comm.global_rank
    try:
        comm.all_reduce(failed, op="min")
    except tutti.Error as lost:  # this rank's own fault says more
        raise fault or lost
    if failed[0] == comm.world_size:
        return result
    if failed[0] == comm.global_rank:
        print(f"mnist_dist: {fault}", file=sys.stderr, flush=True)
    comm.barrier()  # mpiexec ends all ranks as soon as one has failed: not before that line is out
    raise SystemExit(2 if isinstance(fault, OptionError) else 1)

"""The training of mnist_dist.py in processes of this machine, without MPI.

    python mnist_multiprocess.py RANKS [the options of mnist_dist.py]
"""

import multiprocessing
import sys

from mnist_dist import train_mnist_cnn
from options import OptionError, parse_options

import tutti

if __name__ == "__main__":
    if sys.argv[1:] in (["-h"], ["--help"]):
        print(__doc__.strip())
        sys.exit()
    if len(sys.argv) < 2 or not sys.argv[1].isdigit() or int(sys.argv[1]) < 1:
        sys.exit(__doc__)
    world_size = int(sys.argv[1])
    try:  # what is wrong with them is said once
        parse_options(sys.argv[2:])
    except OptionError as error:
        print(f"mnist_dist: {error}", file=sys.stderr)
        sys.exit(2)

    # The ticket that admits the processes to one communicator.
    nccl_id = tutti.NcclIdHolder()
    process = []
    for local_rank in range(0, world_size):
        process.append(multiprocessing.Process(
            target=train_mnist_cnn, args=(nccl_id, local_rank, world_size, sys.argv[2:])))
    for p in process:
        p.start()
    for p in process:
        p.join()
    sys.exit(any(p.exitcode for p in process))

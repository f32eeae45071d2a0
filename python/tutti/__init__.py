"""tutti keeps the replicas of a model in step: collectives, and a SINGA-style DistOpt.

    from tutti import opt
    sgd = opt.DistOpt(opt.SGD(lr=0.005, momentum=0.9))      # one rank of those that are launched
    sgd(backward())                                         # any iterable of (param, grad)

tutti run, mpiexec, srun and torchrun launch ranks. Without one of them, make a ticket with
NcclIdHolder() and hand it to processes that call
opt.DistOpt(sgd, nccl_id=id, local_rank=rank, world_size=size).
"""

__distribution__ = "tutti-distopt"  # before the modules of the package, which look for it

from tutti import _identity

try:
    from tutti import _core  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"tutti's extension module cannot be loaded: {error}. It needs the MPI library that it was "
        "built with (Debian and Ubuntu: apt-get install openmpi-bin libopenmpi3), and to be "
        f"installed or built (pip install .){_identity.hint()}"
    ) from error
from tutti import _ends, _log, errors, files, opt
from tutti._core import (
    ANY_SOURCE,
    ANY_TAG,
    Communicator,
    DeviceArray,
    Event,
    NcclIdHolder,
    Received,
    Recv,
    Send,
    Store,
    Stream,
    Timeline,
    __version__,
    launched_by,
)
from tutti.errors import (
    BackendUnavailable,
    CommunicationError,
    DeadlineExceeded,
    Error,
    InvalidArgument,
    MismatchError,
    PeerLost,
    RankFailed,
    SystemError,
    WorkerError,
)
from tutti.files import load, save
from tutti.helpers import (
    broadcast_parameters,
    data_partition,
    load_parameters,
    save_parameters,
)

UniqueId = NcclIdHolder

_log.follow_environment()
_ends.follow_interpreter()

__all__ = [
    "ANY_SOURCE",
    "ANY_TAG",
    "BackendUnavailable",
    "CommunicationError",
    "Communicator",
    "DeadlineExceeded",
    "DeviceArray",
    "Error",
    "Event",
    "InvalidArgument",
    "MismatchError",
    "NcclIdHolder",
    "PeerLost",
    "RankFailed",
    "Received",
    "Recv",
    "Send",
    "Store",
    "Stream",
    "SystemError",
    "Timeline",
    "UniqueId",
    "WorkerError",
    "__version__",
    "broadcast_parameters",
    "data_partition",
    "errors",
    "files",
    "launched_by",
    "load",
    "load_parameters",
    "opt",
    "save",
    "save_parameters",
]

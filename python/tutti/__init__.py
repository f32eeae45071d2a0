"""tutti keeps the replicas of a model in step: collectives, and a SINGA-style DistOpt.

    from tutti import opt
    sgd = opt.DistOpt(opt.SGD(lr=0.005, momentum=0.9))      # one rank of those mpiexec started
    sgd(backward())                                         # any iterable of (param, grad)

Without MPI, make a ticket with NcclIdHolder() and hand it to processes that call
opt.DistOpt(sgd, nccl_id=id, local_rank=rank, world_size=size).
"""

import atexit as _atexit
import sys as _sys

try:
    from tutti import _core
except ImportError as error:
    raise ImportError(
        f"tutti's extension module cannot be loaded: {error}. It needs the MPI library that it was "
        "built with (Debian and Ubuntu: apt-get install openmpi-bin libopenmpi3), and to be "
        "installed or built (pip install .)"
    ) from error
from tutti import _log, errors, files, opt
from tutti._core import Communicator, DeviceArray, Event, NcclIdHolder, Stream, __version__
from tutti.errors import (
    BackendUnavailable,
    CommunicationError,
    Error,
    InvalidArgument,
    MismatchError,
    PeerLost,
    SystemError,
)
from tutti.files import load, save
from tutti.helpers import broadcast_parameters, data_partition

UniqueId = NcclIdHolder

_log.follow_environment()
# An exception that nobody caught is told to the other ranks, which may wait for this one.
_atexit.register(lambda: _core.close_all(hasattr(_sys, "last_value")))

__all__ = [
    "BackendUnavailable",
    "CommunicationError",
    "Communicator",
    "DeviceArray",
    "Error",
    "Event",
    "InvalidArgument",
    "MismatchError",
    "NcclIdHolder",
    "PeerLost",
    "Stream",
    "SystemError",
    "UniqueId",
    "__version__",
    "broadcast_parameters",
    "data_partition",
    "errors",
    "files",
    "load",
    "opt",
    "save",
]

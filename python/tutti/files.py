"""Files: written so that they are whole or not there, and read so that damage is noticed."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import math
import os
import secrets
import stat
import zipfile
from typing import Any, BinaryIO, Dict, Iterator, Mapping, Optional, Union

import numpy
import numpy.typing as npt

from tutti import _core
from tutti._checks import check_kind
from tutti._types import State
from tutti.errors import InvalidArgument

Path = Union[str, "os.PathLike[str]"]
Arrays = Dict[str, npt.NDArray[Any]]

_CHECKSUM = "sha256"
_NPY: Any = numpy.lib.format  # which has no annotations


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """Makes errors name `path`, and not what stands for it."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None


class _Raw(io.FileIO):
    """Writes, and names `path` where it cannot, as on a full disk."""

    def __init__(self, descriptor: int, path: str) -> None:
        super().__init__(descriptor, "wb")
        self._path = path

    def write(self, data: Any) -> Any:
        with _naming(self._path):
            return super().write(data)


class OutputFile:
    """A new file, written beside `path` under a random name, that takes its place by commit().

    After a crash at any moment `path` is the old file or the new one. Nothing that others have put
    there is written to. A context manager, like a file; what is closed without a commit is removed.

    It has the permissions of this user's file that it replaces, or else what the umask allows.

    Raises OSError if `path` is a symbolic link, a folder, a device or whatever else is no regular
    file, and if its folder is missing or not to be written to. To make and close one is to ask
    whether one may.
    """

    def __init__(self, path: Path) -> None:
        self._path = os.fspath(path)
        self._committed = False
        folder, self._name = os.path.split(self._path)
        self._temporary = f".{secrets.token_hex(8)}.tmp"  # whose length is not the name's
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with contextlib.ExitStack() as stack, _naming(self._path):
            # It stays open, so that its name may change its meaning without harm.
            self._folder = self._open_folder(folder or os.curdir)
            stack.callback(os.close, self._folder)
            permissions = self._look_at_old()
            descriptor = os.open(self._temporary, flags, 0o666, dir_fd=self._folder)
            stack.callback(self._remove)
            self._file = stack.enter_context(io.BufferedWriter(_Raw(descriptor, self._path)))
            if permissions is not None:
                os.fchmod(descriptor, permissions)
            self._resources = stack.pop_all()

    @staticmethod
    def _open_folder(folder: str) -> int:
        try:
            return os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except PermissionError:  # it may be written to all the same
            return os.open(folder, os.O_PATH | os.O_DIRECTORY)

    def _look_at_old(self) -> Optional[int]:
        """The permissions of the file that is to be replaced, if it is this user's.

        Refuses what is none: os.replace() would put the file in the place of a device or a link,
        such as /dev/stdout.
        """
        try:
            there = os.stat(self._name or os.curdir, dir_fd=self._folder, follow_symlinks=False)
        except FileNotFoundError:
            return None
        mode = there.st_mode
        if not stat.S_ISREG(mode):
            what = ("a folder" if stat.S_ISDIR(mode) else
                    "a symbolic link" if stat.S_ISLNK(mode) else "not a regular file")
            raise OSError(errno.EEXIST, f"Cannot be replaced: is {what}")

        folder = os.stat(self._folder)  # with the sticky bit, as in /tmp, the owners alone replace
        if folder.st_mode & stat.S_ISVTX and os.geteuid() not in (0, there.st_uid, folder.st_uid):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        return mode & 0o777 if there.st_uid == os.geteuid() else None

    def _remove(self) -> None:
        if not self._committed:
            os.unlink(self._temporary, dir_fd=self._folder)

    @property
    def file(self) -> BinaryIO:
        """The open file, for what writes to files."""
        return self._file

    def write(self, data: bytes) -> None:
        """Appends, at once."""
        self._file.write(data)
        self._file.flush()

    def commit(self) -> None:
        """Makes what was written durable, then renames the file to its final name, under which
        what is written later can be read as it comes. Once."""
        with _naming(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())
            os.replace(self._temporary, self._name, src_dir_fd=self._folder,
                       dst_dir_fd=self._folder)
            self._committed = True
            try:
                os.fsync(self._folder)
            except OSError as error:
                # How file systems say that they cannot, and what may not be read.
                if error.errno not in (errno.EINVAL, errno.EBADF):
                    raise

    def close(self) -> None:
        """Closes the file, and removes it unless it was committed."""
        with _naming(self._path):
            self._resources.close()

    def __enter__(self) -> OutputFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _checksum(arrays: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[numpy.uint8]:
    """Of names, types, shapes and elements, in their order."""
    digest = hashlib.sha256()
    for name, array in arrays.items():
        digest.update(repr((name, array.dtype.str, array.shape)).encode())
        digest.update(array.ravel().view(numpy.uint8).data)
    return numpy.frombuffer(digest.digest(), numpy.uint8)


def save_arrays(file: BinaryIO, arrays: Mapping[str, Any]) -> None:
    """Writes arrays of numbers to an open file as an .npz archive with a checksum."""
    whole = {name: numpy.asarray(array, order="C") for name, array in arrays.items()}
    whole[_CHECKSUM] = _checksum(whole)
    with zipfile.ZipFile(file, "w") as archive:  # numpy.savez() leaves it open when the disk is full
        for name, array in whole.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                _NPY.write_array(entry, array, version=(1, 0), allow_pickle=False)


def _entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> npt.NDArray[Any]:
    """One array."""
    if entry.flag_bits & 1 or entry.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"'{entry.filename}' is encrypted or compressed")
    content = archive.read(entry)
    header = io.BytesIO(content)
    if _NPY.read_magic(header) != (1, 0):
        raise ValueError(f"'{entry.filename}' is of another version")
    shape, fortran_order, dtype = _NPY.read_array_header_1_0(header)
    elements = math.prod(shape)
    if (dtype.kind not in "fiub" or not dtype.isnative or fortran_order or min(shape, default=0) < 0
            or elements * dtype.itemsize != len(content) - header.tell()):
        raise ValueError(f"'{entry.filename}' has not the elements that it announces")
    return numpy.frombuffer(content, dtype, elements, header.tell()).reshape(shape)


def load_arrays(file: BinaryIO, name: str) -> Arrays:
    """The arrays that save_arrays() wrote to an open file, read-only.

    Raises ValueError, which begins with `name`, if they are anything else.
    """
    try:
        arrays: Arrays = {}
        size = file.seek(0, os.SEEK_END)
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            # What is left of a damaged archive may be an archive, of the bytes that an array holds.
            if not entries or entries[0].header_offset != 0:
                raise ValueError("it begins with something else")
            if sum(entry.compress_size for entry in entries) > size:
                raise ValueError("it announces more than it has")
            for entry in entries:
                key = entry.filename[: -len(".npy")]
                if not entry.filename.endswith(".npy") or key in arrays:
                    raise ValueError(f"it holds '{entry.filename}'")
                arrays[key] = _entry(archive, entry)
        checksum = arrays.pop(_CHECKSUM, None)
        if checksum is None or not numpy.array_equal(checksum, _checksum(arrays)):
            raise ValueError("its checksum is missing or differs")
        return arrays
    except Exception as error:  # zipfile and NumPy raise whatever a damaged file leads them to
        raise ValueError(f"{name}: not a file that tutti saved, or damaged: {error}") from error


def save_state(file: BinaryIO, state: State) -> None:
    """Writes a DistOpt's state to an open file."""
    arrays: Dict[str, Any] = {f"array:{name}": array for name, array in state["arrays"].items()}
    arrays.update({f"number:{name}": numpy.float64(n) for name, n in state["numbers"].items()})
    save_arrays(file, arrays)


def load_state(file: BinaryIO, name: str) -> State:
    """What save_state() wrote. Raises ValueError, which begins with `name`, if it is no state."""
    state: State = {"arrays": {}, "numbers": {}}
    for key, array in load_arrays(file, name).items():
        kind, _, entry = key.partition(":")
        if kind == "array" and array.dtype == numpy.float32 and array.ndim == 1:
            state["arrays"][entry] = array
        elif kind == "number" and array.dtype == numpy.float64 and array.ndim == 0:
            state["numbers"][entry] = float(array)
        else:
            raise ValueError(f"{name}: not an optimiser's state: it holds '{key}'")
    return state


def save(path: Path, opt: _core.DistOpt) -> None:
    """Writes what the optimiser remembers (momentum and the like) to a .npz file.

    A crash at any moment leaves the old file or the new one. Local; the parameters are the model's
    to save. Raises OSError if `path` cannot be written, or is a symbolic link, a folder or a
    device.
    """
    check_kind("path", path, (str, os.PathLike))
    check_kind("opt", opt, (_core.DistOpt,))
    with OutputFile(path) as output:
        save_state(output.file, opt.state())
        output.commit()


def load(path: Path, opt: _core.DistOpt) -> None:
    """Loads what save() wrote, after the parameters were registered. Local.

    Raises InvalidArgument, and changes nothing, if the state is not of these parameters; ValueError
    or OSError if the file is no such file. All name the file.
    """
    check_kind("path", path, (str, os.PathLike))
    check_kind("opt", opt, (_core.DistOpt,))
    name = os.fspath(path)
    with open(path, "rb") as file:
        state = load_state(file, name)
    try:
        opt.load_state(state)
    except InvalidArgument as error:
        raise InvalidArgument(f"{name}: {error}") from error

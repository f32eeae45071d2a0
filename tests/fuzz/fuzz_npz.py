"""Fuzzes the .npz files of states."""

import io
import warnings
import zipfile

import numpy

from tutti import files

REFUSALS = (ValueError,)
NAME = "some file"


def state(length):
    values = numpy.arange(length, dtype=numpy.float32)
    return {"arrays": {"momentum": values, "dist.residual": -values},
            "numbers": {"steps": float(length), "dist.rank": 0.0}}


def same(one, other):
    return (one["numbers"] == other["numbers"] and one["arrays"].keys() == other["arrays"].keys()
            and all(numpy.array_equal(array, other["arrays"][name])
                    for name, array in one["arrays"].items()))


def mutate(rng, data):
    """Some bytes change, vanish or come twice."""
    data = bytearray(data)
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.randrange(1, 9))
        kind = rng.randrange(5)
        if kind == 0:
            data[at:end] = rng.randbytes(end - at)
        elif kind == 1 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            data[at:end] = rng.choice((b"", b"\0\0\0\0", b"\xff\xff\xff\xff", b"9999999"))
        elif kind == 3:
            data[at:at] = data[at:end]
        elif rng.random() < 0.2:
            del data[at:]
    return bytes(data)


# Of arrays' headers: what stands there, and something else.
HEADS = [(b"(7,)", b"(8,)"), (b"(7,)", b"(-7,)"), (b"(7,)", b"(7,1)"), (b"(7,)", b"()"),
         (b"<f4", b"<i4"), (b"<f4", b">f4"), (b"<f4", b"|O"), (b"<f4", b"<f4,<f4"),
         (b"False", b"True"), (b"{", b"["), (b"(7,)", b"(7,0)"), (b"(7,)", b"(99999999999,)"),
         (b"}", b"}" + b" " * 999)]


class Fuzzer:
    def __init__(self):
        warnings.simplefilter("ignore")  # zipfile's, of what is written here on purpose
        self.state = state(7)
        file = io.BytesIO()
        files.save_state(file, self.state)
        self.valid = file.getvalue()
        with zipfile.ZipFile(file) as archive:
            self.entries = [(entry, archive.read(entry)) for entry in archive.infolist()]

    def make(self, rng):
        """The bytes of a file, and whether it may be another state."""
        return rng.choice((self.raw, self.archived, self.summed))(rng)

    def decode(self, thing):
        data, may_differ = thing
        try:
            found = files.load_state(io.BytesIO(data), NAME)
        except ValueError as error:
            assert str(error).startswith(NAME + ": "), error
            raise
        assert may_differ or same(found, self.state), "a mutated file was taken for another content"
        for array in found["arrays"].values():
            assert array.dtype == numpy.float32 and array.ndim == 1

    def raw(self, rng):
        return mutate(rng, self.valid), False

    def archived(self, rng):
        """Sound as an archive, whose entries are not."""
        file = io.BytesIO()
        entries = [self.entry(rng, *entry) for entry in self.entries if rng.random() < 0.95]
        if rng.random() < 0.1:
            rng.shuffle(entries)
        with zipfile.ZipFile(file, "w") as archive:
            for name, content, method in entries:
                archive.writestr(name, content, method)
        data = file.getvalue()
        if rng.random() < 0.2:  # encrypted, or of an unknown method
            at = data.rfind(b"PK\1\2") + rng.choice((8, 10))
            data = data[:at] + bytes([rng.choice((1, 9, 12, 99))]) + data[at + 1:]
        return data, False

    def entry(self, rng, info, content):
        name, method = info.filename, zipfile.ZIP_STORED
        if rng.random() < 0.2:
            old, new = rng.choice(HEADS)
            changed = content.replace(old, new, 1)
            fill = len(changed) - len(content)
            content = changed.replace(b" " * fill, b"", 1) if fill > 0 else changed
        elif rng.random() < 0.1:
            content = mutate(rng, content)
        elif rng.random() < 0.05:
            name = rng.choice(("array:", "number:steps.npy", "x", "../x.npy", "sha256.npy"))
        if rng.random() < 0.05:
            method = rng.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
        return name, content, method

    def summed(self, rng):
        """Arrays that have a right checksum, and may be no state."""
        arrays = {}
        for _ in range(rng.randrange(4)):
            kind = rng.choice(("array:", "array:", "number:", "number:", "other:", ""))
            dtype = rng.choice(("f4", "f8") * 4 + ("i4", "u1", "f2"))
            shape = rng.choice(((), (1,), (7,), (0,), (2, 3)))
            if rng.random() < 0.7:
                shape = {"array:": (7,), "number:": ()}.get(kind, shape)
            arrays[kind + rng.choice("abc")] = numpy.ones(shape, dtype)
        file = io.BytesIO()
        files.save_arrays(file, arrays)
        return file.getvalue(), True

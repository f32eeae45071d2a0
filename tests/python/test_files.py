"""Files that tutti writes and reads: whole or not there, and never taken for what they are not."""

import gc
import gzip
import io
import os
import re
import resource
import stat
import struct
import sys
import tempfile
import zipfile

import numpy
import pytest

import seed_mnist  # noqa: F401 - which finds the example

import checkpoint
import cnn
import mnist
import tutti
from tutti import files, opt


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "result"
    path.write_text("old")
    with files.OutputFile(path) as output:
        output.write(b"begun")
        assert path.read_text() == "old"
    assert path.read_text() == "old" and names(tmp_path) == ["result"]
    with files.OutputFile(path) as output:
        output.write(b"new")
        output.commit()
        output.write(b", and more")
        assert path.read_text() == "new, and more"
    assert names(tmp_path) == ["result"]


def test_links_devices_and_folders_are_left_alone(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (tmp_path / "link").symlink_to(precious)
    (tmp_path / "dangling").symlink_to("none")
    os.mkfifo(tmp_path / "pipe")
    before = names(tmp_path)
    for name, reason in {"link": "is a symbolic link", "dangling": "is a symbolic link",
                         "pipe": "is not a regular file", "": "is a folder",
                         ".": "is a folder", "/dev/full": "is not a regular file",
                         "none/result": "No such file"}.items():
        path = os.path.join(tmp_path, name)
        with pytest.raises(OSError, match=reason) as refused:
            files.OutputFile(path)
        assert refused.value.filename == path
    assert names(tmp_path) == before and precious.read_text() == "precious"


def test_what_takes_the_place_meanwhile_is_not_followed(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("precious")
    with files.OutputFile(tmp_path / "result") as output:
        (tmp_path / "result").symlink_to(precious)
        output.commit()
    assert not (tmp_path / "result").is_symlink() and precious.read_text() == "precious"
    with pytest.raises(IsADirectoryError), files.OutputFile(tmp_path / "occupied") as output:
        (tmp_path / "occupied").mkdir()
        output.commit()
    assert names(tmp_path) == ["occupied", "precious", "result"]


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path, monkeypatch):
    path = tmp_path / "result"
    path.write_text("old")
    ignored, room = [], resource.getrlimit(resource.RLIMIT_FSIZE)
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    for size in (100, 100_000):  # of which the first waits in a buffer
        with pytest.raises(OSError, match="File too large") as full:
            try:
                resource.setrlimit(resource.RLIMIT_FSIZE, (50, room[1]))
                with files.OutputFile(path) as output:
                    files.save_arrays(output.file, {"x": numpy.ones(size, numpy.uint8)})
                    output.commit()
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, room)
        assert full.value.filename == str(path)
        assert names(tmp_path) == ["result"] and path.read_text() == "old"
        del full
        gc.collect()
        assert not ignored


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")
def test_what_belongs_to_others_is_refused_at_once():
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        path = os.path.join(folder, "result")
        with files.OutputFile(path) as output:
            output.commit()
        os.chmod(folder, 0o1777)
        os.seteuid(65534)
        try:
            with pytest.raises(PermissionError):
                files.OutputFile(path)
            files.OutputFile(f"{path}s").close()
        finally:
            os.seteuid(0)
        files.OutputFile(path).close()


def test_the_umask_decides_who_may_read(tmp_path):
    before = os.umask(0o027)
    try:
        with files.OutputFile(tmp_path / "result") as output:
            output.commit()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "result").stat().st_mode) == 0o640


def test_permissions_of_the_old_file_are_kept(tmp_path):
    path = tmp_path / ("x" * 255)  # as long as the system allows
    for mode in (0o600, 0o644):
        path.touch()
        path.chmod(mode)
        with files.OutputFile(path) as output:
            output.commit()
        assert stat.S_IMODE(path.stat().st_mode) == mode


def test_folders_that_may_not_be_read_are_written_to():
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o300)
        root = os.geteuid() == 0
        if root:
            os.chown(folder, 65534, 65534)
            os.seteuid(65534)
        try:
            with files.OutputFile(os.path.join(folder, "result")) as output:
                output.commit()
        finally:
            if root:
                os.seteuid(0)
            os.chmod(folder, 0o700)
        assert os.listdir(folder) == ["result"]


ARRAYS = {"matrix": numpy.arange(6, dtype=numpy.float32).reshape(2, 3),
          "turned": numpy.asfortranarray(numpy.arange(4.0).reshape(2, 2)),
          "nothing": numpy.zeros((0, 3), numpy.uint8), "number": numpy.int64(-7)}


def saved(arrays=ARRAYS):
    file = io.BytesIO()
    files.save_arrays(file, arrays)
    return file.getvalue()


def refusal(data):
    """Why the bytes are refused: in a ValueError that names the file, and in no other exception."""
    with pytest.raises(ValueError, match="^the file: not a file that tutti saved, or damaged: ") as e:
        files.load_arrays(io.BytesIO(data), "the file")
    return str(e.value)


def test_arrays_come_back():
    loaded = files.load_arrays(io.BytesIO(saved()), "the file")
    assert list(loaded) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert loaded[name].dtype == array.dtype
        assert loaded[name].shape == array.shape and (loaded[name] == array).all()


def test_damage_is_refused_or_harmless():
    data = saved()
    for size in range(0, len(data), 7):
        refusal(data[:size])
    for place in range(len(data)):
        mutated = bytearray(data)
        mutated[place] ^= 1 << place % 8
        try:
            loaded = files.load_arrays(io.BytesIO(mutated), "the file")
        except ValueError as error:
            assert str(error).startswith("the file: ")
        else:  # a date, for example
            assert all((loaded[name] == array).all() for name, array in ARRAYS.items())


def test_an_archive_inside_of_a_truncated_one_is_not_taken_for_it():
    outer = saved({"inner": numpy.frombuffer(saved(), numpy.uint8)})
    end = outer.index(b"PK\5\6") + 22
    assert zipfile.is_zipfile(io.BytesIO(outer[:end]))
    assert "it begins with something else" in refusal(outer[:end])


def rezipped(change, compression=zipfile.ZIP_STORED):
    """The archive with changed contents, and the sums of zip right."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(saved())) as old, zipfile.ZipFile(file, "w") as new:
        for name, content in change({name: old.read(name) for name in old.namelist()}):
            new.writestr(name, content, compression)
    return file.getvalue()


def test_crafted_archives_are_refused():
    def with_matrix(content):
        return rezipped(lambda entries: {**entries, "matrix.npy": content}.items())

    def npy(header, content=b"1234"):
        header = header.encode()
        return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + content

    head = "{{'descr': '{}', 'fortran_order': False, 'shape': {}}}\n".format
    assert "checksum" in refusal(with_matrix(npy(head("<f4", "(1,)"))))
    assert "checksum" in refusal(rezipped(lambda entries: list(entries.items())[:-1]))
    assert "checksum" in refusal(rezipped(lambda entries: list(entries.items())[1:]))
    for content in (npy(head("<f4", "(1099511627776, 1099511627776)")), npy(head("<f4", "(-1,)")),
                    npy(head("<f4", "(-1, -1)")), npy(head("<f4", "(2,)")), npy(head("|O", "(1,)")),
                    npy(head("<U1", "(1,)")), npy("(" * 5000), npy("{"), npy("'\n'"), b"", b"\x93NUMPY"):
        refusal(with_matrix(content))
    entry = list(zipfile.ZipFile(io.BytesIO(saved())).namelist())[0]
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        assert f"'{entry}' is encrypted or compressed" in refusal(
            rezipped(lambda entries: entries.items(), method))
    refusal(rezipped(lambda entries: [*entries.items(), ("text", b"text")]))
    data = saved()
    central = data.index(b"PK\1\2")
    for offset, value in ((8, 1), (10, 99), (10, 8)):  # encrypted, unknown, deflated
        mutated = bytearray(data)
        struct.pack_into("<H", mutated, central + offset, value)
        assert "encrypted or compressed" in refusal(bytes(mutated))


def alone():
    comm = tutti.Communicator(0, 1, tutti.NcclIdHolder())
    return comm, opt.DistOpt(opt.SGD(0.1, 0.9), communicator=comm)


def test_save_and_load(tmp_path):
    _, dist = alone()
    dist.register_parameters([numpy.zeros(3, numpy.float32)])
    path = tmp_path / "state.npz"
    tutti.save(path, dist)
    assert names(tmp_path) == ["state.npz"]
    tutti.load(path, dist)
    with pytest.raises(FileNotFoundError):
        tutti.save(tmp_path / "none" / "state", dist)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OSError, match="symbolic link"):
        tutti.save(tmp_path / "link", dist)
    tutti.load(tmp_path / "link", dist)

    numpy.savez(path, weights=numpy.zeros(3))
    with pytest.raises(ValueError, match="state.npz: not a file that tutti saved"):
        tutti.load(path, dist)
    for arrays, reason in (({"weights": numpy.zeros(3)}, "not an optimiser's state: .*'weights'"),
                           ({"array:momentum": numpy.zeros((3, 1), numpy.float32)}, "'array:mom"),
                           ({"number:steps": numpy.zeros(1)}, "'number:steps'"),
                           ({"number:steps": numpy.float64(1)}, "no array 'momentum'")):
        path.write_bytes(saved(arrays))
        with pytest.raises(ValueError, match=f"state.npz: .*{reason}"):
            tutti.load(path, dist)


def test_a_checkpoint_with_a_right_checksum_is_checked_for_sense(tmp_path):
    comm, dist = alone()
    model = cnn.CNN(0)
    dist.register_parameters(model.parameters())
    path = str(tmp_path / "model.npz")
    checkpoint.save(path, 5, 2, model, dist)
    with open(path, "rb") as file:
        arrays = files.load_arrays(file, path)
    first = model.parameters()[0]
    parameter = f"parameter:{first[0]}"
    before = first[1].copy()
    state = arrays["state:0"]
    for change, reason in (
            ({"seed": None}, "'seed' is missing"), ({"seed": numpy.float64(1)}, "'seed' is float64"),
            ({"epochs_done": numpy.int64(-1)}, "epochs_done is -1"),
            ({"epochs_done": numpy.int64(2**62)}, "epochs_done is 4"),
            ({parameter: numpy.ones(1, numpy.float32)}, f"'{parameter}' is float32 of shape"),
            ({parameter: first[1].astype(numpy.float64)}, f"'{parameter}' is float64"),
            ({"state:0": None}, "of 0 ranks"), ({"state:1": state}, "of 2 ranks"),
            ({"state:0": None, "state:7": state}, "it holds 'state:7'"),
            ({"moon": state}, "it holds 'moon'"), ({"state:0": state[:-1]}, "damaged")):
        changed = {**arrays, parameter: before + 1, **change}
        with open(path, "wb") as file:
            files.save_arrays(file, {k: v for k, v in changed.items() if v is not None})
        with pytest.raises(ValueError, match=f"model.npz: .*{reason}"):
            checkpoint._take(path, numpy.fromfile(path, numpy.uint8), model, comm)
        assert (first[1] == before).all()  # nothing half taken


def idx(*shape, content=None):
    numbers = struct.pack(f">{1 + len(shape)}I", 0x800 + len(shape), *shape)
    return numbers + (bytes(numpy.prod(shape)) if content is None else content)


def test_data_sets_are_refused_for_what_they_are(tmp_path):
    good = {"train-images-idx3-ubyte": idx(3, 28, 28), "train-labels-idx1-ubyte": idx(3),
            "t10k-images-idx3-ubyte": idx(2, 28, 28), "t10k-labels-idx1-ubyte.gz":
            gzip.compress(idx(2))}
    images, labels = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
    liar = idx(10_000_000, 28, 28, content=bytes(10_000))

    def load(changed):
        for path in tmp_path.iterdir():
            path.unlink()
        for name, content in {**good, **changed}.items():
            if f"{name}.gz" not in changed:
                (tmp_path / name).write_bytes(content)
        return mnist.load_dataset(tmp_path)

    assert [array.shape for array in load({})] == [(3, 28, 28), (3,), (2, 28, 28), (2,)]
    packed = gzip.compress(liar)
    for name, content, reason in (
            (images, liar, "10016 bytes, but its header announces 7840000016"),
            (f"{images}.gz", packed, f"{len(packed)} bytes, but its header announces 7840000016"),
            (images, idx(2**32 - 1, 28, 28, content=b""), "its shape is (4294967295, 28, 28)"),
            (images, idx(2**31, 2**31, 4, content=b""), "its shape is"),  # 0 in 64 bits
            (images, idx(3, 28, 27), "its shape is"), (images, idx(0, 28, 28), "its shape is"),
            (images, idx(3), "not the file"), (images, b"", "not the file"),
            (images, idx(3, 28, 28)[:-1], "bytes, but its header announces 2368"),
            (images, idx(3, 28, 28) + b"0", "shorter or longer than the 2368 bytes"),
            (f"{images}.gz", gzip.compress(idx(3, 28, 28)[:-1]), "shorter or longer than the 2368"),
            (labels, idx(4), "4 labels up to 0 for 3 images"),
            (labels, idx(3, content=b"\0\n\t"), "3 labels up to 10 for 3 images")):
        with pytest.raises(ValueError, match=f"^{tmp_path}.*: .*{re.escape(reason)}"):
            load({name: content})


def test_load_state_names_what_is_wrong():
    _, dist = alone()
    dist.register_parameters([numpy.zeros(3, numpy.float32)])
    good = dist.state()
    dist.load_state(good)
    momentum, steps = good["arrays"]["momentum"], {"steps": 1}
    for state, reason in (
            (None, "state is a NoneType, but must be a dict"),
            ({}, "state has no 'arrays'"), ({"arrays": {}}, "state has no 'numbers'"),
            ({**good, "moon": 1}, "state has 'moon'"), ({**good, 5: 1}, "a key of state is a int"),
            ({**good, "arrays": [momentum]}, "state['arrays'] is a list"),
            ({**good, "numbers": 5}, "state['numbers'] is a int"),
            ({**good, "arrays": {5: momentum}}, "a key of state['arrays'] is a int"),
            ({**good, "arrays": {"\ud800": momentum}}, "a key of state['arrays'] is not valid"),
            ({**good, "arrays": {"momentum": None}}, "state['arrays']['momentum'] is a NoneType"),
            ({**good, "arrays": {"momentum": [0.0] * 3}}, "state['arrays']['momentum'] is a list"),
            ({**good, "arrays": {"momentum": momentum.astype(numpy.float64)}},
             "state['arrays']['momentum'] must be float32"),
            ({**good, "arrays": {"momentum": momentum.reshape(3, 1)}}, "of one dimension"),
            ({**good, "arrays": {"momentum": momentum.astype("U4")}}, "state['arrays']['momentum']"),
            ({**good, "arrays": {"momentum": momentum[:2]}}, "'momentum' has 2 elements"),
            ({**good, "arrays": {}}, "no array 'momentum'"),
            ({**good, "numbers": {"steps": "one"}}, "state['numbers']['steps'] is a str"),
            ({**good, "numbers": {"steps": 10**400}}, "state['numbers']['steps'] is a int"),
            ({**good, "numbers": {"steps": None}}, "state['numbers']['steps'] is a NoneType"),
            ({**good, "numbers": {1.5: 1}}, "a key of state['numbers'] is a float"),
            ({**good, "numbers": {}}, "no number 'steps'"),
            ({**good, "numbers": {"steps": -1}}, "'steps' is -1"),
            ({**good, "numbers": {"steps": float("nan")}}, "'steps' is nan"),
            ({**good, "numbers": {**steps, "dist.rank": 1}}, "of rank 1, and this is rank 0")):
        with pytest.raises(tutti.InvalidArgument, match=re.escape(reason)):
            dist.load_state(state)
        assert dist.state()["numbers"] == good["numbers"]

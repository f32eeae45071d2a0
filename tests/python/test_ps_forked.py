"""The memory of rows that tutti.ps looks up, in children that are forked while other threads, without
the interpreter's lock, give some back."""

import ctypes
import os
import threading
import time

import numpy

import tutti
from tutti import ps

CHILDREN = 400
THREADS = 3

pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
rename = ctypes.pythonapi.PyCapsule_SetName
rename.restype, rename.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
TAKEN = b"used_dltensor"
DELETER = 56  # where the function stands in DLPack's structure


def give_back(capsule):
    """As a library that has taken it, and frees it in a thread of its own."""
    managed = pointer_of(capsule, b"dltensor")
    rename(capsule, TAKEN)
    deleter = ctypes.c_void_p.from_address(managed + DELETER).value
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(deleter)(managed)


def has_ended(child, deadline):
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, 9)
            os.waitpid(child, 0)
            return False
        time.sleep(0.0005)
    return True


def test_a_child_frees_rows_whatever_other_threads_did_when_it_was_forked():
    items = ps.Embedding("item", 4, optimizer=ps.Sgd(0.5))
    ids = numpy.arange(3)
    with ps.start([items], servers="thread", mode=ps.Sync(),
                  communicator=tutti.Communicator(0, 1, tutti.NcclIdHolder())):
        def lent():
            return items._fleet.lookup_dlpack(items._number, ids, items.dim)

        def give_back_many():
            while not done.is_set():
                for capsule in [lent() for _ in range(8)]:
                    give_back(capsule)

        done = threading.Event()
        threads = [threading.Thread(target=give_back_many) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        try:
            held = [lent()]
            for _ in range(CHILDREN):
                child = os.fork()
                if child == 0:
                    held.clear()
                    os._exit(0)
                assert has_ended(child, time.monotonic() + 10)
        finally:
            done.set()
            for thread in threads:
                thread.join()

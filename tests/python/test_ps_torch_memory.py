"""The memory of rows that tutti.ps looks up for PyTorch: whose it is, and how long."""

import threading

import pytest

import tutti
from test_ps_torch import DIM, ROWS, alone, table

torch = pytest.importorskip("torch")


def test_the_memory_of_rows_that_are_gone_is_used_again_and_no_other():
    items = table()
    ids = torch.arange(ROWS)
    with alone([items]) as fleet:
        def lookup_dlpack():
            return items._fleet.lookup_dlpack(items._number, ids, DIM)  # noqa: F821 - it is deleted below

        wanted = items.lookup(range(ROWS)).copy()
        first = items.lookup(ids)
        address = first.data_ptr()
        assert address % 64 == 0 and first.is_contiguous() and first.dtype is torch.float32
        assert items.lookup(ids).data_ptr() != address
        view = first[1:].view(-1, 2)  # of memory that it keeps
        del first
        assert items.lookup(ids + 1).data_ptr() != address
        assert torch.equal(view.reshape(-1, DIM), torch.as_tensor(wanted[1:]))
        del view
        assert items.lookup(ids).data_ptr() == address

        def free_in_another_thread(tensors):
            thread = threading.Thread(target=tensors.clear)
            thread.start()
            thread.join()

        free_in_another_thread([items.lookup(ids)])
        capsule = lookup_dlpack()  # which nobody takes
        del capsule
        assert items.lookup(ids).data_ptr() == address

        many = [items.lookup(ids) for _ in range(20)]  # more than are kept
        assert len({tensor.data_ptr() for tensor in many}) == 20
        assert all(torch.equal(tensor, torch.as_tensor(wanted)) for tensor in many)
        del many
        for few in (torch.tensor(7), ids[:0], ids[:6].view(1, 2, 3)):
            rows = items.lookup(few)
            assert rows.shape == (*few.shape, DIM) and torch.equal(rows, torch.as_tensor(wanted)[few])
        last = items.lookup(ids)
        for dim in (DIM + 1, -1, 2**61):
            with pytest.raises(tutti.InvalidArgument):
                items._fleet.lookup_dlpack(items._number, ids, dim)
    del fleet, items
    last += 1  # it keeps its memory without them
    torch.testing.assert_close(last, torch.as_tensor(wanted) + 1)

"""The test suite's own arrays: a layout changes where values lie, never the values."""

import numpy as np
import pytest
from backends import LAYOUTS
from oracle import FLOATS, rounded
from producer import of_numpy

SHAPES = ((), (1,), (5,), (3, 4), (2, 1, 3), (2, 0, 3))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_layout_holds_the_values(backend, rng, shape, layout):
    for dtype in (*FLOATS, "int64"):
        x = rounded(100 * rng.standard_normal(shape), dtype)
        on_device = backend.array(x, layout)
        assert tuple(on_device.shape) == shape
        np.testing.assert_array_equal(backend.numpy(on_device), np.asarray(x, np.float64))
        assert backend.raw(on_device).dtype == x.dtype


@pytest.mark.parametrize("layout", LAYOUTS)
def test_empty_is_poisoned(backend, dtype, layout):
    assert np.isnan(backend.numpy(backend.empty((2, 3), dtype, layout))).all()


def test_broadcast_has_zero_strides(backend, dtype):
    x = backend.broadcast(rounded([[1.0], [2.0]], dtype), (4, 2, 3))
    np.testing.assert_array_equal(backend.numpy(x)[2], [[1, 1, 1], [2, 2, 2]])


def test_unaligned_starts_one_element_late(backend):
    aligned, unaligned = (backend.array(np.zeros(64, "f2"), k) for k in ("contiguous", "unaligned"))
    assert backend.address(aligned) % 16 == 0
    assert backend.address(unaligned) % 16 == 2


def test_producer_is_read_by_numpy():
    x = np.arange(12.0).reshape(3, 4)[::-1, ::2]
    producer = of_numpy(x)
    seen = np.from_dlpack(producer)
    np.testing.assert_array_equal(seen, x)
    assert producer.deleted == 0
    del seen
    assert producer.deleted == 1
    assert not np.from_dlpack(of_numpy(x, read_only=True)).flags.writeable
    assert np.from_dlpack(of_numpy(x, byte_offset=16))[0, 1] == x[0, 1]

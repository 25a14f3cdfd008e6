"""BF16 through DLPack, with a library that NumPy does not know."""

import ctypes
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tercet


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


api = ctypes.pythonapi
api.PyCapsule_New.restype = ctypes.py_object
api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
api.PyCapsule_GetPointer.restype = ctypes.c_void_p
api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
NAME, USED = ctypes.c_char_p(b"dltensor"), ctypes.c_char_p(b"used_dltensor")


class Tensor:
    """A tensor of another library: BF16 in host memory, with strides."""

    def __init__(self, array: Any, device: int = 1, contiguous: bool = False, code: int = 4) -> None:
        self.array = array.view(np.uint16)
        shape, strides = self.array.shape, [stride // 2 for stride in self.array.strides]
        self.shape = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        self.strides = (ctypes.c_int64 * max(len(shape), 1))(*strides)
        self.device = device
        step = None if contiguous else self.strides
        address = self.array.__array_interface__["data"][0]
        self.managed = Managed(DLTensor(address - 6, device, 0, len(shape), code, 16, 1, self.shape, step, 6), None, DELETER())

    def __dlpack__(self, **options: Any) -> Any:
        return api.PyCapsule_New(ctypes.addressof(self.managed), NAME, None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.device, 0)


def taken(producer: Any) -> Any:
    """Reads a BF16 capsule as a consumer does, and frees it."""
    assert producer.__dlpack_device__() == (1, 0)
    capsule = producer.__dlpack__()
    managed = Managed.from_address(api.PyCapsule_GetPointer(capsule, NAME))
    api.PyCapsule_SetName(capsule, USED)
    tensor = managed.tensor
    assert (tensor.device_type, tensor.code, tensor.bits, tensor.lanes) == (1, 4, 16, 1)
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    assert not tensor.strides
    address = (tensor.data or 0) + tensor.byte_offset
    count = int(np.prod(shape))
    bits = (ctypes.c_uint16 * count).from_address(address) if count else ()
    values = np.array(bits, np.uint16).view(ml_dtypes.bfloat16).reshape(shape)
    managed.deleter(ctypes.addressof(managed))
    return values, address


def identity(x: Any, shape: tuple[int, ...]) -> Any:
    g = tercet.Graph()
    g.output("y", g.input("x", f"bf16[{', '.join(map(str, shape))}]"))
    return g.compile("cpu")(x=x)["y"]


@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 4), (2, 0, 3), (2, 3, 4)])
def test_bf16_goes_in_and_out(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).normal(size=shape).astype(ml_dtypes.bfloat16)
    for contiguous in (True, False):
        y = identity(Tensor(x, contiguous=contiguous), shape)
        assert y.dtype == ml_dtypes.bfloat16 and y.shape == shape
        np.testing.assert_array_equal(y, x)
    values, address = taken(y)
    np.testing.assert_array_equal(values, x)
    if x.size:
        assert address == y.__array_interface__["data"][0]
    # A capsule that nobody takes is freed.
    for _ in range(3):
        y.__dlpack__()


def test_strides() -> None:
    x = np.arange(24).reshape(4, 6).astype(ml_dtypes.bfloat16)
    for view in (x.T, x[::2, ::-1], x[:, 1:3], np.broadcast_to(x[0], (3, 6))):
        np.testing.assert_array_equal(identity(Tensor(view), view.shape), view)
        y = identity(np.ascontiguousarray(view), view.shape)
        np.testing.assert_array_equal(taken(y.T)[0], view.T)


def test_bf16_arrays_stay_arrays() -> None:
    y = identity(np.ones(3, ml_dtypes.bfloat16), (3,))
    assert isinstance(y, np.ndarray) and isinstance(y, tercet.BFloat16Array)
    assert np.from_dlpack((y == 1)).tolist() == [True] * 3
    assert np.from_dlpack(y.astype(np.float32)).tolist() == [1.0] * 3
    np.testing.assert_array_equal(identity(y, (3,)), y)
    copy, address = taken(y[:])
    assert address == y.__array_interface__["data"][0]
    with pytest.raises(BufferError, match="device"):
        y.__dlpack__(dl_device=(2, 0))


def test_tensors_that_are_refused() -> None:
    x = np.ones(3, ml_dtypes.bfloat16)
    with pytest.raises(tercet.TensorError, match="`x` is in the memory of a device.*cpu"):
        identity(Tensor(x, device=2), (3,))
    with pytest.raises(Exception, match="(?i)unsupported|dtype|bits"):
        identity(Tensor(x, code=9), (3,))
    with pytest.raises(tercet.RunError, match="f32|bf16"):
        g = tercet.Graph()
        g.output("y", g.input("x", "f32[3]"))
        g.compile("cpu")(x=Tensor(x))

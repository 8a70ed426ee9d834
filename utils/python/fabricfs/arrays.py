"""What numpy, torch and Python's own buffers are to a fabric: so many elements of a type, somewhere in memory.

A fabric's collectives see flat memory. So whatever is not one dense block in row order, in this machine's byte order,
on the host, is moved through a block that is (`load`, `store`); and what cannot be moved back without doubt is a
TypeError before anything has been asked for.
"""
import ctypes
import sys
from dataclasses import dataclass
from typing import Any, Callable, Iterable

ELEMENT_BYTES = {"f32": 4, "f64": 8, "f16": 2, "bf16": 2, "i8": 1, "u8": 1, "i32": 4, "u32": 4, "i64": 8, "u64": 8}
NAMES = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "int8": "i8", "uint8": "u8",
         "int32": "i32", "uint32": "u32", "int64": "i64", "uint64": "u64"}  # of numpy, ml_dtypes and torch
LONG_NAMES = {name: long for long, name in NAMES.items()}
FORMATS = {"f32": "f", "f64": "d", "i8": "b", "u8": "B", "i32": "i", "u32": "I", "i64": "q", "u64": "Q"}


@dataclass(frozen=True)
class View:
    """An array as a fabric sees it."""
    dtype: str
    count: int
    address: int                    # of the dense block on the host; 0: none, it must be moved
    load: Callable[[Any], object]   # copies the elements to a block of memory, in row order
    store: Callable[[Any], object]  # and back


def address_of(memory: Any) -> int:
    """Of the first byte of a writable buffer, which has one."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def name_of(dtype: Any) -> str:
    """A fabric's name of an element type, "f32" for float32; TypeError when it has none."""
    text = str(getattr(dtype, "name", dtype)).replace("torch.", "")
    if getattr(dtype, "isnative", True) and (text in ELEMENT_BYTES or text in NAMES):
        return NAMES.get(text, text)
    raise TypeError(f"elements of {dtype} are not of {', '.join(ELEMENT_BYTES)}, in this machine's byte order")


def view_of(x: Any) -> View:
    """The view of a numpy array, a torch tensor or another writable buffer. TypeError for anything else."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch and isinstance(x, torch.Tensor):
        return _of_tensor(x, torch)
    if numpy and isinstance(x, numpy.ndarray):
        return _of_ndarray(x, numpy)
    return _of_buffer(x)


def _check_apart(shape: Iterable[int], strides: Iterable[int], element: int) -> None:
    """TypeError unless every element has memory of its own: a result could not be stored in it."""
    extent = element
    for stride, length in sorted((abs(stride), length) for stride, length in zip(strides, shape)):
        if length > 1 and stride < extent:
            raise TypeError("several elements share memory (an expanded or overlapping view); copy it first")
        extent += (length - 1) * stride


def _of_ndarray(x: Any, numpy: Any) -> View:
    if isinstance(x, numpy.ma.MaskedArray):
        raise TypeError("a masked array has elements that do not count; give its data")
    if not x.flags.writeable:
        raise TypeError("the array is read-only, and the result could not be stored in it")
    dtype, count = name_of(x.dtype), x.size
    if count:
        _check_apart(x.shape, x.strides, x.itemsize)

    def block(memory: Any) -> Any:
        return numpy.frombuffer(memory, x.dtype, count).reshape(x.shape)

    dense = x.flags.c_contiguous and x.flags.aligned
    return View(dtype, count, x.ctypes.data if dense else 0,
                lambda memory: numpy.copyto(block(memory), x), lambda memory: numpy.copyto(x, block(memory)))


def _of_tensor(x: Any, torch: Any) -> View:
    x = x.detach()
    if x.layout != torch.strided or x.is_meta or x.is_quantized:
        raise TypeError(f"a tensor of layout {x.layout} on {x.device} is no plain memory")
    dtype, count = name_of(x.dtype), x.numel()
    if count:
        _check_apart(x.shape, x.stride(), 1)

    def block(memory: Any) -> Any:
        return torch.frombuffer(memory, dtype=x.dtype, count=count).view(x.shape)

    dense = x.device.type == "cpu" and x.is_contiguous() and not x.is_neg()
    return View(dtype, count, x.data_ptr() if dense else 0,
                lambda memory: block(memory).copy_(x), lambda memory: x.copy_(block(memory)))


def _of_buffer(x: Any) -> View:
    memory = memoryview(x)  # TypeError when x is no buffer
    if memory.readonly or not memory.c_contiguous:
        raise TypeError(f"a {type(x).__name__} that is read-only or has gaps cannot hold the result")
    letter = memory.format.lstrip("@=<" if sys.byteorder == "little" else "@=>")
    letter = {"l": "q", "L": "Q"}.get(letter, letter) if memory.itemsize == 8 else letter
    dtype = next((name for name, of in FORMATS.items() if of == letter), None)
    if dtype is None or ELEMENT_BYTES[dtype] != memory.itemsize:
        raise TypeError(f"elements of format {memory.format!r} are not of {', '.join(FORMATS)}")
    address, size = address_of(memory) if memory.nbytes else 0, memory.nbytes
    return View(dtype, size // memory.itemsize, address,
                lambda block: ctypes.memmove(address_of(block), address, size),
                lambda block: ctypes.memmove(address, address_of(block), size))

"""What may be given to a collective: the right result or TypeError, in every shape that memory comes in."""
import array
import ctypes
import mmap

from harness import equal
from ranks import module, raises, together

WORLD = 2


def sums(mount, make, count=None):
    """Each rank makes an array of its own, and all of them are added; what all ranks have then, as lists."""
    def body(fabric):
        x = make(fabric)
        fabric.allreduce(x)
        return x.tolist()
    results = together(mount, body, WORLD)
    equal(results[0], results[1], "the two ranks' results")
    return results[0]


def refused(mount, make, *said):
    """A rank alone gives what make(fabric) returns; nothing is asked for, and the next operation works."""
    def body(fabric):
        for collective in (fabric.allreduce, fabric.reduce_scatter, fabric.allgather, fabric.broadcast):
            with raises(TypeError, *said):
                collective(make(fabric))
        fabric.barrier()
        return open(f"{fabric.path}/ranks/0/status").read().count("\n")
    equal(together(mount, body, 1), [2], "operations asked for: the two barriers")


def test_an_array_of_the_fabric_is_reduced_where_it_is(mount):
    def body(fabric):
        x = fabric.array((3, 4))
        address = x.ctypes.data
        x[:] = fabric.rank + 1
        fabric.allreduce(x)
        fabric.allreduce(x[1], "max")
        status = open(f"{fabric.path}/ranks/{fabric.rank}/status").read().splitlines()
        return address == x.ctypes.data, x.tolist(), "count=4 " in status[-1] and "offset=16" in status[-1]
    module("numpy")
    for result in together(mount, body):
        equal(result, (True, [[3.0] * 4] * 3, True))


def test_arrays_of_every_dtype_are_added(mount):
    numpy = module("numpy")
    names = ("float32", "float64", "float16", "int8", "uint8", "int32", "uint32", "int64", "uint64")

    def body(fabric):
        results = []
        for name in names:
            inside, outside = fabric.array(5, name), numpy.arange(5).astype(name)
            inside[:] = outside
            fabric.allreduce(inside)
            fabric.allreduce(outside)
            results.append((str(inside.dtype), inside.tolist(), outside.tolist()))
        return results
    for results in together(mount, body):
        equal(results, [(name, [0, 2, 4, 6, 8], [0, 2, 4, 6, 8]) for name in names])


def test_an_array_with_gaps_gets_the_result_and_its_gaps_stay(mount):
    numpy = module("numpy")

    def make(fabric):
        whole = numpy.arange(12, dtype="f8").reshape(3, 4)
        make.whole = whole
        return whole[::2, 1::2]

    def body(fabric):
        fabric.allreduce(make(fabric))
        return make.whole.tolist()
    for whole in together(mount, body):
        equal(whole, [[0, 2, 2, 6], [4, 5, 6, 7], [8, 18, 10, 22]])


def test_row_order_and_column_order_are_added_element_by_element(mount):
    numpy = module("numpy")
    equal(sums(mount, lambda fabric: numpy.array([[1, 2, 3], [4, 5, 6]], "f4", order="CF"[fabric.rank])),
          [[2, 4, 6], [8, 10, 12]])


def test_reversed_arrays_are_added_in_their_own_order(mount):
    numpy = module("numpy")
    equal(sums(mount, lambda fabric: numpy.arange(4, dtype="i4")[::-1 if fabric.rank else 1]), [3, 3, 3, 3])


def test_an_array_at_an_odd_address_is_added(mount):
    numpy = module("numpy")
    equal(sums(mount, lambda _: numpy.frombuffer(bytearray(b"\0" + numpy.arange(3, dtype="f4").tobytes()), "f4", 3, 1)),
          [0, 2, 4])


def test_arrays_of_no_dimension_and_of_no_element_are_taken(mount):
    numpy = module("numpy")
    equal(sums(mount, lambda fabric: numpy.array(fabric.rank + 1, "i8")), 3)
    equal(sums(mount, lambda _: numpy.zeros((0, 3), "f4")), [])
    equal(sums(mount, lambda fabric: fabric.array((4, 0))), [[], [], [], []])
    equal(sums(mount, lambda fabric: fabric.array(())), 0)


def test_a_read_only_array_is_refused(mount):
    numpy = module("numpy")
    refused(mount, lambda _: numpy.broadcast_to(numpy.float32(1), 4), "read-only")
    refused(mount, lambda _: numpy.frombuffer(b"1234", "u1"), "read-only")
    refused(mount, lambda _: numpy.float32(1), "read-only")


def test_an_array_in_the_other_byte_order_is_refused(mount):
    numpy = module("numpy")
    refused(mount, lambda _: numpy.ones(4, ">f4"), "byte order")


def test_elements_that_a_fabric_does_not_add_are_refused(mount):
    numpy = module("numpy")
    for dtype in ("?", "i2", "c8", "U3", "O", "M8[s]", "f4,i4"):
        refused(mount, lambda _, dtype=dtype: numpy.zeros(4, dtype), "f32")
    refused(mount, lambda _: numpy.ma.zeros(4, "f4"), "masked")


def test_elements_that_share_memory_are_refused(mount):
    numpy = module("numpy")
    slide = numpy.lib.stride_tricks.as_strided
    refused(mount, lambda _: slide(numpy.zeros(8, "f4"), (3, 4), (4, 4)), "share memory")
    refused(mount, lambda _: slide(numpy.zeros(8, "f4"), (3,), (0,)), "share memory")


def test_what_is_no_memory_is_refused(mount):
    for thing in (1.0, [1.0], "text", None, object()):
        refused(mount, lambda _, thing=thing: thing)
    refused(mount, lambda _: b"1234", "read-only")
    refused(mount, lambda _: memoryview(bytearray(8))[::2], "gaps")


def test_buffers_of_python_itself_are_added_without_numpy(mount):
    import sys
    sys.modules["numpy"] = sys.modules["torch"] = None  # an import of either fails

    def body(fabric):
        own = fabric.memory(3, "i32")
        things = [own, array.array("f", [0] * 3), bytearray(3), (ctypes.c_int32 * 3)(), (ctypes.c_double * 3)(),
                  array.array("l", [0] * 3), memoryview(mmap.mmap(-1, 3))]
        for thing in things:
            thing[1] = fabric.rank + 1
            fabric.allreduce(thing)
        return [list(thing) for thing in things]
    for results in together(mount, body):
        equal(results, [[0, 3, 0]] * 7)


def test_memory_comes_with_zeros_and_is_used_again(mount):
    def body(fabric):
        for count in (1000, 3000, 500, 2000):
            first, second = fabric.memory(count), fabric.memory(count, "f64")
            assert not any(first) and not any(second), "not zeros"
            first[count - 1] = second[0] = 7
            fabric.allreduce(second)
            equal(second[0], 7.0 * fabric.world)
        return open(f"{fabric.path}/ranks/{fabric.rank}/buffer", "rb").seek(0, 2)
    sizes = together(mount, body)
    assert sizes[0] <= 3 * 36 * 1024, f"the buffer has grown to {sizes[0]} bytes"


def test_memory_beyond_the_limit_is_refused_and_what_there_is_works(mount):
    def body(fabric):
        own = fabric.memory(1000)
        with raises(OSError, "No space left"):
            fabric.memory(1 << 20)
        own[0] = 1
        fabric.allreduce(own)
        return own[0]
    equal(together(mount, body, memory="1M"), [2.0, 2.0])


# --- torch -------------------------------------------------------------------------------------------------------

def test_a_tensor_of_the_fabric_is_reduced_where_it_is(mount):
    torch = module("torch")

    def body(fabric):
        results = []
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64, "f64"):
            x = fabric.tensor((2, 3), dtype)
            address = x.data_ptr()
            x += fabric.rank + 1
            fabric.allreduce(x)
            results.append((x.tolist(), address == x.data_ptr()))
        return results
    for results in together(mount, body):
        equal(results, [([[3.0] * 3] * 2, True)] * 5)


def test_tensors_with_gaps_and_of_any_layout_in_memory_get_the_result(mount):
    torch = module("torch")
    equal(sums(mount, lambda _: torch.arange(6.0).view(2, 3).t()), [[0, 6], [2, 8], [4, 10]])
    equal(sums(mount, lambda _: torch.arange(8.0)[1::3]), [2, 8, 14])
    equal(sums(mount, lambda fabric: torch.arange(8.0).view(1, 2, 2, 2).contiguous(
        memory_format=(torch.contiguous_format, torch.channels_last)[fabric.rank])),
          [[[[0, 2], [4, 6]], [[8, 10], [12, 14]]]])
    equal(sums(mount, lambda fabric: torch.tensor(fabric.rank + 1.0)), 3)
    equal(sums(mount, lambda _: torch.zeros(0, 3)), [])


def test_a_parameter_that_wants_a_gradient_is_taken_as_it_is(mount):
    torch = module("torch")

    def body(fabric):
        x = torch.nn.Parameter(torch.ones(3))
        fabric.allreduce(x)
        (x * x).sum().backward()
        return x.tolist(), x.grad.tolist()
    equal(together(mount, body), [([2.0] * 3, [4.0] * 3)] * 2)


def test_a_lazily_negated_tensor_counts_with_its_sign(mount):
    torch = module("torch")
    equal(sums(mount, lambda _: torch.tensor([1 + 2j, 3 + 4j]).conj().imag), [-4, -8])


def test_tensors_that_are_no_plain_memory_are_refused(mount):
    torch = module("torch")
    refused(mount, lambda _: torch.ones(3).to_sparse(), "no plain memory")
    refused(mount, lambda _: torch.ones(3, device="meta"), "no plain memory")
    refused(mount, lambda _: torch.quantize_per_tensor(torch.ones(3), 1.0, 0, torch.qint8), "no plain memory")
    refused(mount, lambda _: torch.ones(1).expand(3), "share memory")
    for dtype in (torch.bool, torch.int16, torch.complex64):
        refused(mount, lambda _, dtype=dtype: torch.ones(3, dtype=dtype), "f32")


class Cuda:
    """Stands for torch.cuda where there is none: counts what it is asked to pin."""

    def __init__(self, answer=0):
        self.answer, self.pinned, self.released = answer, [], []

    def is_available(self):
        return True

    def cudart(self):
        return self

    def cudaHostRegister(self, address, size, flags):
        self.pinned.append((address, size))
        return self.answer

    def cudaHostUnregister(self, address):
        self.released.append(address)


def test_tensors_are_pinned_for_cuda_or_it_is_said_why_not(mount):
    import warnings
    torch = module("torch")

    def body(fabric):
        torch.cuda = cuda = Cuda()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            x = fabric.tensor(1000)
            address = x.data_ptr()
            del x
        if mount.mode == "coherent":
            return not fabric.pinned and not cuda.pinned and "cannot be pinned" in str(said[0].message)
        assert fabric.pinned and cuda.pinned == [(address, 4096)] and cuda.released == [address], vars(cuda)
        torch.cuda = Cuda(answer=2)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            x = fabric.tensor(1000)
        return "error 2" in str(said[0].message)
    equal(together(mount, body, 1), [True])

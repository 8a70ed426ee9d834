"""What the collectives should give, computed with numpy from every rank's input.

f16 and bf16 live as numpy float16 and, since numpy has no bf16, as uint16 bit patterns.
"""
import numpy as np

DTYPES = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": np.uint16, "i8": np.int8, "u8": np.uint8,
          "i32": np.int32, "u32": np.uint32, "i64": np.int64, "u64": np.uint64}
FLOATS = ("f32", "f64", "f16", "bf16")
OPS = ("sum", "avg", "min", "max", "prod", "band", "bor", "bxor")


def ops_of(dtype):
    return OPS[:5] if dtype in FLOATS else OPS


def bf16_from_f32(values):
    """Rounds to nearest, ties to even, by integer arithmetic; a NaN stays one."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), ((bits >> 16) | 0x40).astype(np.uint16), rounded)


def bf16_to_f32(values):
    return (values.astype(np.uint32) << 16).view(np.float32)


def widen(array, dtype):
    """The values as the accumulator's type."""
    if dtype == "bf16":
        return bf16_to_f32(array)
    return array.astype(np.float32) if dtype == "f16" else array


def narrow(array, dtype):
    if dtype == "bf16":
        return bf16_from_f32(array)
    with np.errstate(over="ignore"):
        return array.astype(DTYPES[dtype])


def smaller(a, b, largest=False):
    """min or max of floats: NaN if either is one, and -0 below +0."""
    pick = np.where(a > b, a, b) if largest else np.where(a < b, a, b)
    zero_sign = (np.signbit(a) & np.signbit(b)) if largest else (np.signbit(a) | np.signbit(b))
    pick = np.where((a == 0) & (b == 0), np.where(zero_sign, a.dtype.type(-0.0), a.dtype.type(0.0)), pick)
    return np.where(np.isnan(a) | np.isnan(b), a.dtype.type(np.nan), pick)


def divide(total, world, dtype):
    if dtype in FLOATS:
        return total / total.dtype.type(world)
    if total.dtype.kind == "u":
        return total // total.dtype.type(world)
    quotient = np.abs(total.astype(object)) // world  # toward zero, exact for every width
    return np.array(quotient * np.where(total < 0, -1, 1), dtype=object).astype(total.dtype)


def reduce(inputs, dtype, op):
    """The reduction of equally long arrays, one a rank, in rank order."""
    wide = [widen(array, dtype) for array in inputs]
    combine = {"sum": np.add, "avg": np.add, "prod": np.multiply, "band": np.bitwise_and, "bor": np.bitwise_or,
               "bxor": np.bitwise_xor, "min": np.minimum, "max": np.maximum}[op]
    if dtype in FLOATS and op in ("min", "max"):
        combine = lambda a, b: smaller(a, b, op == "max")  # noqa: E731
    with np.errstate(all="ignore"):
        total = wide[0]
        for array in wide[1:]:
            total = combine(total, array).astype(total.dtype)
        if op == "avg":
            total = divide(total, len(inputs), dtype)
        return narrow(total, dtype) if dtype in FLOATS else total


def same(actual, expected, dtype):
    """Whether two results are the same values, bit for bit except that any NaN equals any NaN."""
    if dtype not in FLOATS:
        return np.array_equal(actual, expected)
    a, b = widen(actual, dtype), widen(expected, dtype)
    return bool((((a == b) & (np.signbit(a) == np.signbit(b))) | (np.isnan(a) & np.isnan(b))).all())


def part(rank, count, world):
    """Elements of a rank's part."""
    return slice(rank * count // world, (rank + 1) * count // world)


def random_input(random, dtype, count, op="sum"):
    """Values whose sum and product are exact in the accumulator, so that the order of adding does not matter;
    of whole width for integers, which wrap."""
    kind = np.dtype(DTYPES[dtype])
    if dtype not in FLOATS:
        limits = np.iinfo(kind)
        return random.integers(limits.min, limits.max, count, kind, endpoint=True)
    small = random.integers(-8, 8, count).astype(np.float32) / (4 if op == "prod" else 8)
    return bf16_from_f32(small) if dtype == "bf16" else small.astype(kind)

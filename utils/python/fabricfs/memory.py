"""A rank's `buffer`: its length grows as pieces of it are asked for, and each piece is a mapping of its own.

A mapping is memory for as long as anybody refers to it (an array, a tensor, an operation under way); then its range of
the file is used again. Whatever lies in a mapping is known by its address, so that an operation on it moves nothing.
"""
import bisect
import contextlib
import ctypes
import mmap
import os
import threading
import weakref
from typing import Optional

from fabricfs.arrays import address_of


def close(fd: int) -> None:
    """It is closed even where that fails, since no daemon hears of it any more."""
    with contextlib.suppress(OSError):
        os.close(fd)


class Memory:
    """The pieces of one buffer. Any thread may take some; they are given back by whichever drops the last reference."""

    def __init__(self, path: str):
        self._fd = os.open(path, os.O_RDWR)
        os.ftruncate(self._fd, 0)  # what an earlier process of this rank had left
        self._size = 0
        self._free: "list[tuple[int, int]]" = []         # offset and length, in order
        self._mapped: "list[tuple[int, int, int]]" = []  # address, length and offset, in order
        self._spare: "dict[int, list[mmap.mmap]]" = {}   # mappings to move data through, by length
        self._lock = threading.RLock()                   # of the lists; a thread may drop a mapping while it holds it

    def take(self, size: int) -> mmap.mmap:
        """Zeros, `size` bytes of them or up to a page more. OSError (ENOSPC) when a memory limit is in the way."""
        length = -(-max(size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        with self._lock:
            offset, is_new = self._cut(length)
            try:
                piece = mmap.mmap(self._fd, length, offset=offset)
            except BaseException:
                self._put(offset, length)
                raise
            address = address_of(piece)
            if not is_new:
                ctypes.memset(address, 0, length)
            bisect.insort(self._mapped, (address, length, offset))
            weakref.finalize(piece, self._give_back, address, length, offset).atexit = False
        return piece

    def find(self, address: int, size: int) -> Optional[int]:
        """Where in the file the memory at this address is, or None when it is not of this buffer."""
        with self._lock:
            at = bisect.bisect(self._mapped, (address, 1 << 62, 0)) - 1
            begin, length, offset = self._mapped[at] if at >= 0 else (0, 0, 0)
        return offset + address - begin if address + size <= begin + length else None

    def borrow(self, size: int) -> mmap.mmap:
        """A piece for a while, with anything in it. Lengths are powers of two, so that few of them serve all."""
        length = max(mmap.PAGESIZE, 1 << (size - 1).bit_length())
        with self._lock:
            spare = self._spare.setdefault(length, [])
            return spare.pop() if spare else self.take(length)

    def give(self, piece: mmap.mmap) -> None:
        """Gives back what was borrowed."""
        with self._lock:
            self._spare[len(piece)].append(piece)

    def close(self) -> None:
        """Ends the use of the file; what is mapped stays so."""
        self._spare.clear()
        close(self._fd)

    def _cut(self, length: int) -> "tuple[int, bool]":
        """A range of the file that nobody uses: its offset, and whether it was never used before."""
        for at, (offset, free) in enumerate(self._free):
            if free >= length:
                self._free[at:at + 1] = [(offset + length, free - length)] if free > length else []
                return offset, False
        os.ftruncate(self._fd, self._size + length)
        self._size += length
        return self._size - length, True

    def _put(self, offset: int, length: int) -> None:
        """Makes a range free, one with its neighbours."""
        at = bisect.bisect(self._free, (offset, length))
        self._free.insert(at, (offset, length))
        for left in (at, at - 1):
            if 0 <= left < len(self._free) - 1:
                (first, some), (second, more) = self._free[left:left + 2]
                if first + some == second:
                    self._free[left:left + 2] = [(first, some + more)]

    def _give_back(self, address: int, length: int, offset: int) -> None:
        with self._lock:
            self._mapped.remove((address, length, offset))
            self._put(offset, length)

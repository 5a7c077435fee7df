"""CUDA in small, over the driver's own library: who is there, and whether each answers. For the preflight's child.

A call may never return, and one on a lost card can end the process, so nobody but a child program makes one.
Source of names, numbers and signatures: cuda.h (CUDA Driver API).
"""

from __future__ import annotations

import ctypes
from typing import Any

LIBRARY = "libcuda.so.1"
BYTES = 64 << 20
PATTERN = 0x5EEDBEEF
OUT_OF_MEMORY = 2
DEVICE_UNAVAILABLE = 46
"""CUDA_ERROR_DEVICE_UNAVAILABLE: in exclusive mode, while another process has it."""
PCI = (50, 33, 34)
"""CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, _PCI_BUS_ID, _PCI_DEVICE_ID."""
# y[i] = ~x[i] for 1,024 words by one block: a kernel so small that every driver since CUDA 9 compiles it.
PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry invert(.param .u64 words)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [words];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd3, %r1, 4;
    add.s64 %rd4, %rd2, %rd3;
    ld.global.u32 %r2, [%rd4];
    not.b32 %r3, %r2;
    st.global.u32 [%rd4], %r3;
    ret;
}
"""
THREADS = 1024


class Failed(Exception):
    """A call of CUDA's failed: `code` is its CUresult, the text says which and why."""

    def __init__(self, call: str, code: int, why: str) -> None:
        super().__init__(f"{call}: {why} ({code})")
        self.code = code


class Cuda:
    """The driver's library, loaded. Raises OSError where it is not installed."""

    def __init__(self) -> None:
        self._lib = ctypes.CDLL(LIBRARY)

    def call(self, name: str, *arguments: Any) -> None:
        """Make one call; raises Failed."""
        code = int(getattr(self._lib, name)(*arguments))
        if code:
            raise Failed(name, code, self._words(code))

    def _words(self, code: int) -> str:
        text = ctypes.c_char_p()
        try:
            self._lib.cuGetErrorString(code, ctypes.byref(text))
        except AttributeError:
            return "failed"
        return (text.value or b"failed").decode("ascii", "replace")

    def order(self) -> list[str]:
        """Initialise CUDA and return the PCI addresses of the devices that it sees, in its order."""
        self.call("cuInit", 0)
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        return [self._address(number) for number in range(count.value)]

    def _address(self, number: int) -> str:
        device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), number)
        parts = []
        for attribute in PCI:
            value = ctypes.c_int()
            self.call("cuDeviceGetAttribute", ctypes.byref(value), attribute, device)
            parts.append(value.value)
        return f"{parts[0]:04x}:{parts[1]:02x}:{parts[2]:02x}.0"

    def try_out(self, number: int) -> None:
        """Make a context, fill 64 MiB, run a kernel on them and read them back; raises Failed or ValueError."""
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), number)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        try:
            self.call("cuCtxSetCurrent", context)
            self._compute()
        finally:
            self._lib.cuDevicePrimaryCtxRelease_v2(device)

    def _compute(self) -> None:
        memory = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(BYTES))
        try:
            self.call("cuMemsetD32_v2", memory, ctypes.c_uint(PATTERN), ctypes.c_size_t(BYTES // 4))
            self._invert(memory)
            back = (ctypes.c_uint32 * (BYTES // 4))()
            self.call("cuMemcpyDtoH_v2", back, memory, ctypes.c_size_t(BYTES))
        finally:
            self._lib.cuMemFree_v2(memory)
        inverted = PATTERN ^ 0xFFFFFFFF
        data = bytes(back)
        good = inverted.to_bytes(4, "little") * THREADS + PATTERN.to_bytes(4, "little") * (BYTES // 4 - THREADS)
        if data != good:
            raise ValueError("what was computed is wrong")

    def _invert(self, memory: ctypes.c_uint64) -> None:
        module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), PTX)
        try:
            self.call("cuModuleGetFunction", ctypes.byref(kernel), module, b"invert")
            arguments = (ctypes.c_void_p * 1)(ctypes.addressof(memory))
            self.call("cuLaunchKernel", kernel, 1, 1, 1, THREADS, 1, 1, 0, None, arguments, None)
            self.call("cuCtxSynchronize")
        finally:
            self._lib.cuModuleUnload(module)

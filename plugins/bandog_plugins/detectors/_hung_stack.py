"""What a kernel stack says about why a task waits: frames, the place where it waits, a class.

Used for khungtaskd's traces and for `/proc/<pid>/stack` alike. The classes and their frames are
those seen on GPU servers; a stack is read from the top, and the first frame that means something
decides, except that frames which say no more than "waits for a page" give way to any better one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

DRIVER = "driver"
LOCAL_STORAGE = "local-storage"
REMOTE_STORAGE = "remote-storage"
FABRIC = "fabric"
COREDUMP = "coredump"
MEMORY = "memory"
FROZEN = "frozen"
OTHER = "other"


class Frame(NamedTuple):
    """One function of a stack; `sure` is False for a frame that the kernel marks with `?`."""

    func: str
    module: str = ""
    sure: bool = True

    def __str__(self) -> str:
        return f"{self.func} [{self.module}]" if self.module else self.func


_FRAME = re.compile(
    r"\s*(?:\[<[0-9a-fx]*>\]\s)?\s*(?P<unsure>\? )?(?P<func>[\w.$]{1,512})\+0x[0-9a-f]+/0x[0-9a-f]+"
    r"(?: \[(?P<module>[^\]\s]+)[^\]]*\])?\s*\Z"
)
"""` ? func+0x12/0x34 [module]`, with the `[<address>] ` of kernels before 4.10 and of /proc/<pid>/stack."""


def frame(line: str) -> Frame | None:
    """Return the frame that a line of a trace holds, or None where it holds none."""
    if "+0x" not in line:
        return None
    match = _FRAME.match(line)
    if match is None:
        return None
    return Frame(match["func"], match["module"] or "", match["unsure"] is None)


_SCHEDULE = re.compile(r"__switch_to|(?:__|io_)?schedule(?:_|\.|\Z)|preempt_schedule")


def where(frames: Iterable[Frame]) -> str | None:
    """Return the function that waits: the first reliable one above which only the scheduler stands."""
    for one in frames:
        if one.sure and not _SCHEDULE.match(one.func):
            return one.func
    return None


def modules(frames: Iterable[Frame]) -> tuple[str, ...]:
    """Return the modules of the reliable frames, from the top, each once."""
    return tuple(dict.fromkeys(one.module for one in frames if one.sure and one.module))


_DRIVER_MODULE = re.compile(r"nvidia|gdrdrv|amdgpu|amdkfd|nouveau")
_MODULES = (
    (DRIVER, _DRIVER_MODULE),
    (
        REMOTE_STORAGE,
        re.compile(
            r"nfs|sunrpc|rpcrdma|lockd\Z|lustre|obdclass|ptlrpc|lnet|mgc|mdc\Z|osc\Z|lov\Z|lmv\Z|fuse|virtiofs"
            r"|ceph|libceph|weka|cifs|smb|9p|gpfs|mmfs|beegfs|orangefs|afs\Z|netfs|nvme_tcp|nvme_rdma|iscsi"
        ),
    ),
    (FABRIC, re.compile(r"mlx\d|ib_|rdma|iw_cm|irdma|bnxt_re|efa\Z|hfi1|qedr|ucma|infiniband")),
    (
        LOCAL_STORAGE,
        re.compile(r"ext4|jbd2|xfs|btrfs|f2fs|nvme|dm_|md_mod|raid|zfs|spl\Z|scsi|mpt3sas|megaraid|libata|ahci"),
    ),
)
_FUNCTIONS = (
    (DRIVER, re.compile(r"os_acquire_(?:rwlock|mutex|sema)|uvm_|nvidia_|nv_|_nv\d{4,}rm|rm_|amdgpu_|kfd_")),
    (COREDUMP, re.compile(r"do_coredump|vfs_coredump|coredump_|elf_core_dump|elf_coredump|dump_emit")),
    (FROZEN, re.compile(r"sb_start_write|__sb_start_write|sb_wait_write|freeze_super|freeze_bdev|thaw_super")),
    (
        REMOTE_STORAGE,
        re.compile(
            r"rpc_|__rpc_|nfs|cl_sync_io_wait|ptlrpc_|ll_|fuse_|__fuse_|request_wait_answer|ceph_|cifs_|smb2_"
            r"|p9_|v9fs_|netfs_|gpfs|beegfs"
        ),
    ),
    (FABRIC, re.compile(r"mlx\d_|ib_|__ib_|rdma_|ucma_|cma_|irdma_")),
    (
        MEMORY,
        re.compile(
            r"mem_cgroup_|try_charge|shrink_|out_of_memory|__alloc_pages_slowpath|try_to_free_|reclaim_throttle"
            r"|throttle_direct_reclaim|congestion_wait|do_swap_page|swap_read|__oom_"
        ),
    ),
    (
        LOCAL_STORAGE,
        re.compile(
            r"jbd2_|ext4_|xfs_|xlog_|btrfs_|f2fs_|blk_|__blk_|blkdev_|submit_bio|nvme_|dm_|md_|raid\d|scsi_|sd_|ata_"
            r"|rq_qos_wait|wbt_wait|bio_|txg_|zio_|wb_|writeback_|sync_inodes|loop_|get_request"
        ),
    ),
)
_WAITS_FOR_PAGE = re.compile(
    r"io_schedule|(?:__|out_of_line_)?(?:bit_wait_io|wait_on_bit_io|wait_on_bit_lock_io)|bit_wait_io|folio_wait_"
    r"|wait_on_page|__?lock_page|__?folio_lock|filemap_|wait_on_buffer|__wait_on_buffer|sleep_on_page"
)
"""Local storage unless a deeper frame knows better: a network file system waits in these too."""

_PERCPU_RWSEM = re.compile(r"percpu_rwsem_wait|__?percpu_down_read|percpu_down_write")
_NO_FILE_SYSTEM = re.compile(r"cgroup_|cpus_read_lock|copy_process|exit_signals|threadgroup_|_cpu_up|_cpu_down")
"""Other users of the per-CPU semaphore that holds writers back from a frozen file system."""

_EXITS = re.compile(r"do_exit\Z|exit_mm\Z|coredump_task_exit")


def classify(frames: Sequence[Frame]) -> str:
    """Return the class of a stack (the class words of `task.hung`); "other" when nothing tells."""
    sure = [one for one in frames if one.sure]
    for one in sure:
        if _PERCPU_RWSEM.match(one.func) and not any(_NO_FILE_SYSTEM.match(f.func) for f in sure):
            return FROZEN
        found = _class_of(one)
        if found == LOCAL_STORAGE and any(_class_of(deeper) == COREDUMP for deeper in sure):
            return COREDUMP
        if found is not None:
            return found
    if _EXITS.match(where(sure) or ""):
        return COREDUMP
    if any(_WAITS_FOR_PAGE.match(one.func) for one in sure):
        return LOCAL_STORAGE
    return OTHER


def _class_of(one: Frame) -> str | None:
    for word, pattern in _MODULES if one.module else ():
        if pattern.match(one.module):
            return word
    for word, pattern in _FUNCTIONS:
        if pattern.match(one.func):
            return word
    return None


def in_driver(frames: Iterable[Frame]) -> bool:
    """Return whether a GPU driver's function stands anywhere in the stack."""
    return any(one.sure and _class_of(one) == DRIVER for one in frames)

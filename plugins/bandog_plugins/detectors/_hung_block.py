"""khungtaskd's report on one task: the lines of a block and what they hold.

Parsed by shape, never by kernel version: distributions backport every change of wording (Linux
4.19 to 7.x, `kernel/hung_task.c` and `sched_show_task`). Names are hostile: up to 15 bytes of any
kind, colons and newlines included, so a name ends at the last colon before the digits, and nothing
is looked for at the start of a line inside a record.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from bandog import Fact, Record

from . import _hung_facts as known
from . import _hung_stack as stack

PREFIX = "INFO: task "
# A name has 15 bytes, of which a source may have escaped each as \xNN.
_NAME = r".{0,60}"
_BLOCKED = rf"INFO: task (?P<comm>{_NAME}):(?P<pid>[0-9]{{1,10}}) blocked(?P<iowait> in I/O wait)? for more than "
_HEADLINE = re.compile(_BLOCKED + r"(?P<seconds>[0-9]{1,12}) seconds\.\s*\Z", re.S)
_ANYWHERE = re.compile(_BLOCKED + r"(?P<seconds>[0-9]{1,12}) seconds", re.S)
_OWNER = re.compile(
    rf"INFO: task (?P<comm>{_NAME}):(?P<pid>[0-9]{{1,10}}) (?:<(?P<role>reader|writer)> |is )?blocked on an? "
    r"(?P<lock>mutex|semaphore|rw-semaphore)"
    rf"(?: likely (?:last held|owned) by task (?P<owner>{_NAME}):(?P<owner_pid>[0-9]{{1,10}})"
    r"(?: <(?P<owner_role>reader|writer)>)?\.?|, but the (?:owner|last holder) is not found\.)\s*\Z",
    re.S,
)
_TAINT = re.compile(
    r"\s*(?:Not tainted|Tainted: (?P<taint>[A-Z -]+?))\s+(?P<release>\S*[0-9]\S*)(?:\s+\S.*)?\s*\Z", re.S
)
_STATE = re.compile(
    r"task:.*state:(?P<state>[A-Z])(?P<running>\s+running task)?\s+stack:\s*\S+\s+pid:\s*(?P<pid>[0-9]{1,10})"
    r"(?P<rest>.*)\Z",
    re.S,
)
_PAIR = re.compile(r"(tgid|ppid|task_flags|flags):\s*(0x[0-9a-f]{1,16}|[0-9]{1,10})(?:\s|\Z)")
# Up to 5.8: name, state, free stack (with a program counter before it on older ones), pid, ppid, flags.
_OLD_STATE = re.compile(
    r".{0,60}\s(?P<state>[A-Z])\s+(?:running task\s+)?(?:[0-9a-f]+\s+){1,2}(?P<pid>[0-9]{1,10})\s+"
    r"(?P<ppid>[0-9]{1,10})\s+(?P<flags>0x[0-9a-f]{1,16})\s*\Z",
    re.S,
)
_WORK = re.compile(r"Workqueue: (?P<name>.+?) (?P<func>[A-Za-z_]\S*)(?: \[\S+\])?(?: \((?P<desc>.*)\))?\s*\Z", re.S)
SUPPRESSED = "Future hung task reports are suppressed"
COREDUMP_LINE = "Blocked by coredump."
# Headlines of other reports with a trace: what follows them is theirs.
_OTHERS = (
    SUPPRESSED,
    "BUG: ",
    "WARNING: CPU",
    "INFO: rcu",
    "rcu: INFO",
    "sysrq: ",
    "Kernel panic",
    "------------[ cut here",
    "Oops",
    "NMI backtrace",
    "watchdog: BUG",
)
KTHREADD = 2
COMM_BYTES = 15
MAX_FRAMES = 128
MAX_LINE = 512
"""Characters of a line that are looked at: no pattern here is worse than quadratic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """The first line of a block."""

    comm: str
    pid: int
    seconds: int
    iowait: bool

    def facts(self) -> dict[str, Fact]:
        """Return what this line alone tells."""
        facts: dict[str, Fact] = {"pid": self.pid, "comm": self.comm, "seconds": self.seconds, "by": "khungtaskd"}
        if self.iowait:
            facts["iowait"] = True
        if len(self.comm.encode("utf-8", "surrogatepass")) >= COMM_BYTES:
            facts["comm_truncated"] = True
        return facts


def headline(text: str) -> Headline | None:
    """Return the headline that a record is, or None."""
    return _built(_HEADLINE.match(text))


def headline_within(text: str) -> Headline | None:
    """Return a headline's words from anywhere in a record: text that somebody made the kernel print."""
    return _built(_ANYWHERE.search(text))


def _built(match: re.Match[str] | None) -> Headline | None:
    if match is None:
        return None
    return Headline(
        comm=match["comm"],
        pid=int(match["pid"]),
        seconds=int(match["seconds"]),
        iowait=match["iowait"] is not None,
    )


@dataclass(slots=True, kw_only=True)
class Trace:
    """The state line of one task and the stack below it."""

    pid: int
    state: str = ""
    numbers: dict[str, int] = field(default_factory=dict)  # tgid, ppid
    flags: dict[str, str] = field(default_factory=dict)  # flags, task_flags, as printed
    frames: list[stack.Frame] = field(default_factory=list)
    begun: bool = False  # its "Call Trace:" was read
    ended: bool = False  # its end marker was read

    def read_state(self, text: str) -> bool:
        """Take the state line if `text` is that of this task."""
        match = _STATE.match(text) if text.startswith("task:") else None
        if match is not None:
            if int(match["pid"]) != self.pid:
                return False
            for name, value in _PAIR.findall(match["rest"]):
                if name in ("tgid", "ppid"):
                    self.numbers[name] = int(value, 0) if value.startswith("0x") else int(value)
                else:
                    self.flags[name] = value
        else:
            match = _OLD_STATE.match(text)
            if match is None or int(match["pid"]) != self.pid:
                return False
            self.numbers["ppid"] = int(match["ppid"])
            self.flags["flags"] = match["flags"]
        self.state = match["state"]
        return True


@dataclass(slots=True, kw_only=True)
class Block:
    """One report while its lines come in. `first` is the headline's record, `last` the latest line's."""

    head: Headline
    first: Record
    last: Record
    seen: int = 0  # records since the headline, foreign ones included
    touched: bool = True  # a line of ours came since the last flush
    coredump: bool = False
    taint: str = ""
    release: str = ""
    work: Mapping[str, str] = field(default_factory=dict)
    lock: str = ""
    role: str = ""
    holder: str = ""
    holder_role: str = ""
    task: Trace = field(init=False)
    owner: Trace | None = None
    _now: Trace | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.task = Trace(pid=self.head.pid)
        self._now = self.task

    @property
    def over(self) -> bool:
        """True once nothing more can follow: the owner's trace has ended."""
        return self.owner is not None and self.owner.ended

    def take(self, record: Record) -> bool:
        """Take a record that follows the headline; False means that it ends the block and is not of it."""
        self.seen += 1
        text = record.text[:MAX_LINE]
        if text.startswith(PREFIX):
            ours = self._take_owner(text)
        elif self._take_line(text):
            ours = True
        else:
            return not text.startswith(_OTHERS)
        if ours:
            self.last = record
            self.touched = True
        return ours

    def _take_owner(self, text: str) -> bool:
        match = _OWNER.match(text)
        if match is None or int(match["pid"]) != self.head.pid or self.lock:
            return False
        self.lock = match["lock"]
        self.role = match["role"] or ""
        self._now = None
        if match["owner_pid"] is not None:
            self.holder = match["owner"]
            self.holder_role = match["owner_role"] or ""
            self.owner = Trace(pid=int(match["owner_pid"]))
            self._now = self.owner
        return True

    def _take_line(self, text: str) -> bool:
        if " state:" in text or not text.startswith((" ", "\t")):
            taken = self._take_flush_left(text)
            if taken is not None:
                return taken
        trace = self._now
        bare = text.strip()
        if bare == COREDUMP_LINE:
            self.coredump = True
        elif bare in ("<TASK>", "</TASK>"):
            if trace is not None and bare == "</TASK>":
                trace.ended = True
                self._now = None
        elif not self.release and (match := _TAINT.match(text)) is not None:
            self.taint = " ".join((match["taint"] or "").replace("-", " ").split())
            self.release = match["release"]
        elif (found := stack.frame(text)) is not None:
            if trace is not None and len(trace.frames) < MAX_FRAMES:
                trace.frames.append(found)
        else:
            return False
        return True

    def _take_flush_left(self, text: str) -> bool | None:
        trace = self._now
        if text.startswith('"echo 0 > '):
            return True
        if text.lower().startswith("call trace:"):
            return self._begin_trace()
        if text.startswith("Workqueue: ") and trace is self.task and (match := _WORK.match(text)) is not None:
            self.work = {name: match[name] for name in ("name", "func", "desc") if match[name]}
            return True
        for one in (self.task, self.owner):
            if one is not None and not one.state and not one.ended and one.read_state(text):
                self._now = one
                return True
        if text.startswith("task:") and " state:" in text:
            self._now = None  # somebody else's dump (sysrq): its frames are not ours
            return False
        return None

    def _begin_trace(self) -> bool:
        if self._now is None:
            return False
        if self._now.begun:
            self._now = None  # a second trace belongs to another report
            return False
        self._now.begun = True
        return True

    def facts(self) -> dict[str, Fact | None]:
        """Return all that the block tells, absent ones as None."""
        task, owner = self.task, self.owner
        facts: dict[str, Fact | None] = {**self.head.facts()}
        facts |= task.numbers
        facts |= task.flags
        tgid = task.numbers.get("tgid")
        ppid = task.numbers.get("ppid")
        facts |= {
            "class": self.class_word(),
            "where": stack.where(task.frames),
            "stack": tuple(str(one) for one in task.frames if one.sure)[: known.MOST_FRAMES] or None,
            "modules_in_stack": stack.modules(task.frames) or None,
            "state": task.state,
            "thread_of": tgid if tgid != self.head.pid else None,
            "kernel_thread": None if ppid is None else KTHREADD in (ppid, self.head.pid),
            "tainted": self.taint,
            "release": self.release,
            "coredump": self.coredump or None,
            "workqueue": self.work.get("name"),
            "work_func": self.work.get("func"),
            "work_desc": self.work.get("desc"),
            "blocker_type": self.lock,
            "blocked_as": self.role,
        }
        if owner is not None:
            facts |= {
                "holder": self.holder,
                "holder_pid": owner.pid,
                "holder_role": self.holder_role,
                "holder_tgid": owner.numbers.get("tgid"),
                "holder_state": owner.state,
                "holder_where": stack.where(owner.frames),
            }
        return facts

    def class_word(self) -> str:
        """Return the class of the wait; where the task's own stack is mute, the lock's holder tells."""
        if self.coredump:
            return stack.COREDUMP
        word = stack.classify(self.task.frames)
        if word == stack.OTHER and self.owner is not None:
            return stack.classify(self.owner.frames)
        return word

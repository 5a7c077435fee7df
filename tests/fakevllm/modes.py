"""How the server misbehaves: told by POST /lab/mode or by a file, changed while it runs."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

from .frontend import Frontend
from .options import Options
from .processes import release

MODES: dict[str, tuple[str, ...]] = {
    "normal": (),
    "stall": ("running", "silent", "decode"),
    "slow": (),
    "rubbish": ("text", "html", "empty", "blank", "huge", "redirect", "error", "short", "drip", "none"),
    "die": (),
    "d-state": (),
}
"""Each mode and its arguments, the default first; slow takes seconds a step, die and d-state a rank."""
LOOK = 0.2


class Modes:
    """The mode in force. Wrong words change nothing."""

    def __init__(self, options: Options, frontend: Frontend) -> None:
        self._options = options
        self._frontend = frontend
        self._lock = threading.Lock()
        self.mode, self.argument = "normal", ""

    def start(self) -> None:
        """Begin to follow the control file, where there is to be one."""
        if self._options.control:
            threading.Thread(target=self._follow, name="control", daemon=True).start()

    def set(self, mode: str, argument: str = "") -> str | None:
        """Change the mode; return what is wrong with the words, None if nothing is."""
        choice = MODES.get(mode)
        if choice is None:
            return f"no mode {mode!r}; there are {', '.join(MODES)}"
        if choice and argument and argument not in choice:
            return f"{mode} has no {argument!r}; there are {', '.join(choice)}"
        if not choice and argument and not argument.replace(".", "", 1).isdecimal():
            return f"{mode} takes a number, not {argument!r}"
        with self._lock:
            self.mode, self.argument = mode, argument or (choice[0] if choice else "")
            if mode != "d-state":
                release(Path(self._options.fifo))
            self._frontend.order(self.mode, self.argument)
        return None

    def _follow(self) -> None:
        """Take each new content of the control file: `MODE [ARGUMENT]`."""
        last = ""
        while not self._frontend.dead.wait(LOOK):
            with contextlib.suppress(OSError, UnicodeDecodeError):
                text = Path(self._options.control).read_text()
                words = text.split()
                if text != last and words:
                    last = text
                    self.set(words[0], words[1] if len(words) > 1 else "")

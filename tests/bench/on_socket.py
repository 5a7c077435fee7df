"""The daemon as `bandog run` runs it, but its kernel log is a socket that it inherited.

Usage: FD ROOT RUNTIME. A packet socket gives one record a read, as /dev/kmsg does.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from bandog.daemon import Parts, Settings, main

if __name__ == "__main__":
    number, root, runtime = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    os.set_blocking(number, False)
    raise SystemExit(main(Settings(root=root, run=runtime), Parts(open_kmsg=lambda path: os.dup(number))))

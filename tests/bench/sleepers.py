"""A model server's threads in small: COUNT of them that sleep. Ends by itself after SECONDS, or with its input."""

from __future__ import annotations

import json
import os
import sys
import threading

if __name__ == "__main__":
    count, seconds = int(sys.argv[1]), float(sys.argv[2])
    threading.stack_size(64 * 1024)
    for _ in range(count):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    print(json.dumps({"pid": os.getpid()}), flush=True)
    timer = threading.Timer(seconds, os._exit, (0,))
    timer.daemon = True
    timer.start()
    sys.stdin.read()
    os._exit(0)

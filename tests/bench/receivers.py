"""A mail server and a webhook on loopback, in a process of their own: prints their URLs, then who got something.

Ends when its standard input does.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "unit/runtime"))

from sinks import SmtpSink, WebhookSink


def tell(name: str, sink: SmtpSink | WebhookSink) -> None:
    """Print `name` for each message that comes."""
    for count in range(1, 1_000_000):
        sink.wait(count, 1e6)
        print(name, flush=True)


if __name__ == "__main__":
    with SmtpSink() as mail, WebhookSink() as chat:
        print(json.dumps({"mail": mail.url, "chat": chat.url}), flush=True)
        if "--tell" in sys.argv:
            for name, sink in (("mail", mail), ("chat", chat)):
                threading.Thread(target=tell, args=(name, sink), daemon=True).start()
        sys.stdin.read()

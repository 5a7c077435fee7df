"""A mail server that keeps what it is sent, as much of SMTP (RFC 5321) as a sender needs."""

from __future__ import annotations

import email
import email.policy
import socketserver
import threading
from email.message import EmailMessage


class MailSink:
    """Takes every mail on a loopback port; `messages` holds them in order."""

    def __init__(self) -> None:
        self.messages: list[EmailMessage] = []
        sink = self

        class Session(socketserver.StreamRequestHandler):
            def _say(self, line: str) -> None:
                self.wfile.write(line.encode() + b"\r\n")

            def handle(self) -> None:
                self._say("220 lab")
                for raw in self.rfile:
                    word = raw.decode(errors="replace").strip().upper()
                    if word == "DATA":
                        self._say("354 go on")
                        self._take()
                        self._say("250 taken")
                    elif word == "QUIT":
                        self._say("221 bye")
                        return
                    else:
                        self._say("250 lab")

            def _take(self) -> None:
                lines = []
                for raw in self.rfile:
                    if raw.rstrip(b"\r\n") == b".":
                        break
                    lines.append(raw[1:] if raw.startswith(b"..") else raw)
                sink.messages.append(email.message_from_bytes(b"".join(lines), policy=email.policy.default))

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Session, bind_and_activate=False)
        self._server.allow_reuse_address = True
        self._server.daemon_threads = True
        self._server.server_bind()
        self._server.server_activate()
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)

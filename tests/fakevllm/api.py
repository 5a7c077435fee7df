"""The pages: health, models, completions, metrics, and /lab/mode. Formats as vLLM's OpenAI server has them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from . import metrics, rubbish
from .frontend import Frontend
from .modes import Modes
from .options import Options

WORDS = [str(number) for number in range(9, 21)]
LOOK = 0.1
BODY = 1 << 24


class Api(ThreadingHTTPServer):
    """Listens on the bound `port` from its making on."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self, options: Options, port: socket.socket, frontend: Frontend, *, engine: int, uuids: list[str | None]
    ) -> None:
        self.options = options
        self.frontend = frontend
        self.modes = Modes(options, frontend)
        self.engine = engine
        self.uuids = uuids
        self.created = int(time.time())
        super().__init__(port.getsockname(), Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = port
        self.server_activate()


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that holds the port without listening. Raises OSError."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        one.bind((host, port))
    except OSError:
        one.close()
        raise
    return one


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Api
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer one of the pages."""
        path = self.path.partition("?")[0]
        if self._locked(path):
            return
        healthy = not self.server.frontend.dead.is_set()
        if path in ("/health", "/ping", "/health_generate"):
            self.send(b"", HTTPStatus.OK if healthy else HTTPStatus.SERVICE_UNAVAILABLE)
        elif path == "/metrics":
            page = metrics.of_sglang if self.server.options.dialect == "sglang" else metrics.of_vllm
            text = page(self.server.frontend.stats, self.server.options.model)
            self.send(text.encode(), kind="text/plain; version=0.0.4; charset=utf-8")
        elif path == "/v1/models":
            self.say({"object": "list", "data": [self._model()]})
        elif path == "/version":
            self.say({"version": "0.19.0"})
        elif path == "/lab/mode":
            self.say(self._state())
        else:
            self.refuse(HTTPStatus.NOT_FOUND, "Not Found")

    def do_POST(self) -> None:
        """Answer a completion, or change the mode."""
        asked = self._body()
        if asked is None or self._locked(self.path):
            return
        if self.path == "/lab/mode":
            wrong = self.server.modes.set(str(asked.get("mode", "")), str(asked.get("argument", "")))
            if wrong:
                self.refuse(HTTPStatus.BAD_REQUEST, wrong)
            else:
                self.say(self._state())
        elif self.path in ("/v1/completions", "/v1/chat/completions"):
            self._complete(asked, chat="chat" in self.path)
        else:
            self.refuse(HTTPStatus.NOT_FOUND, "Not Found")

    # --- the pages ---------------------------------------------------------------------------------

    def _complete(self, asked: dict[str, Any], *, chat: bool) -> None:
        options = self.server.options
        if asked.get("model") not in (None, options.model):
            self.refuse(HTTPStatus.NOT_FOUND, f"The model `{asked['model']}` does not exist.")
            return
        prompt = json.dumps(asked.get("messages", asked.get("prompt", "")))
        most = asked.get("max_tokens") or asked.get("max_completion_tokens") or 16
        tokens = len(prompt) // 4 + 1
        if type(most) is not int or most < 1 or tokens + most > options.max_model_len:
            self.refuse(HTTPStatus.BAD_REQUEST, f"This model's maximum context length is {options.max_model_len}.")
            return
        if self.server.modes.mode == "rubbish":
            rubbish.answer(self, self.server.modes.argument)
            return
        number, pending = self.server.frontend.ask(tokens, most)
        while not pending.ended.wait(LOOK):
            if self._gone():
                self.server.frontend.abort(number)
                self.close_connection = True
                return
        if pending.failed:
            self.refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "EngineCore encountered an issue.")
            return
        text = " ".join(WORDS[place % len(WORDS)] for place in range(pending.tokens))
        self.say(completion(options.model, text, number, pending.prompt, pending.tokens, chat=chat))

    def _gone(self) -> bool:
        """True once the client has closed its connection."""
        with contextlib.suppress(OSError):
            if not select.select([self.connection], [], [], 0)[0]:
                return False
            return not self.connection.recv(1, socket.MSG_PEEK)
        return True

    def _model(self) -> dict[str, Any]:
        options = self.server.options
        name = options.model
        return {
            "id": name,
            "object": "model",
            "created": self.server.created,
            "owned_by": "vllm",
            "root": name,
            "parent": None,
            "max_model_len": options.max_model_len,
        }

    def _state(self) -> dict[str, Any]:
        server = self.server
        return {
            "mode": server.modes.mode,
            "argument": server.modes.argument,
            "pids": {"api": os.getpid(), "engine": server.engine, "workers": server.frontend.workers},
            "gpus": [one for one in server.uuids if one is not None],
        }

    # --- of a connection ---------------------------------------------------------------------------

    def _locked(self, path: str) -> bool:
        """Refuse who has no key; vLLM guards only what lies below /v1."""
        key = self.server.options.api_key
        if not key or not path.startswith("/v1") or self.headers.get("Authorization") == f"Bearer {key}":
            return False
        self.send(b'{"error":"Unauthorized"}', HTTPStatus.UNAUTHORIZED)
        return True

    def _body(self) -> dict[str, Any] | None:
        length = self.headers.get("Content-Length", "0")
        if not length.isdecimal() or int(length) > BODY:
            self.close_connection = True
            self.refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too much")
            return None
        try:
            asked = json.loads(self.rfile.read(int(length)) or b"{}")
        except (ValueError, RecursionError):
            asked = None
        if not isinstance(asked, dict):
            self.refuse(HTTPStatus.BAD_REQUEST, "the body is no JSON object")
            return None
        return asked

    def refuse(self, status: HTTPStatus, why: str) -> None:
        """Send an error in the form of the API."""
        error = {"message": why, "type": status.phrase.replace(" ", ""), "param": None, "code": status.value}
        self.say({"error": error}, status)

    def say(self, value: object, status: HTTPStatus = HTTPStatus.OK) -> None:
        """Send JSON."""
        self.send(json.dumps(value).encode(), status)

    def send(self, body: bytes, status: HTTPStatus = HTTPStatus.OK, *, kind: str = "application/json") -> None:
        """Send a whole answer; a client that has gone does not matter."""
        with contextlib.suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, form: str, *values: Any) -> None:
        """Print a line an access, as uvicorn does."""
        if self.server.options.access_log:
            print(f"INFO:     {self.client_address[0]}:{self.client_address[1]} - {form % values}", flush=True)


def completion(model: str, text: str, number: int, prompt: int, tokens: int, *, chat: bool) -> dict[str, Any]:
    """Return the body of an answered completion."""
    part: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    return {
        "id": f"{'chatcmpl' if chat else 'cmpl'}-{number:032x}",
        "object": "chat.completion" if chat else "text_completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, **part, "logprobs": None, "finish_reason": "length"}],
        "usage": {"prompt_tokens": prompt, "total_tokens": prompt + tokens, "completion_tokens": tokens},
    }

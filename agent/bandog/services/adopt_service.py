"""The service file that an adoption proposes: how the service is asked, and its profiles. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from .adopt_command import Command
from .adopt_profiles import Proposal
from .adopt_unit import Found


def service_text(
    found: Found,
    command: Command | None,
    service: str,
    *,
    gpus: str | tuple[str, ...] | None,
    proposals: Sequence[Proposal],
    variable: str,
) -> str:
    """Return the file; `variable` is that of the tensor parallel size, "" where the size is fixed."""
    lines = [
        f"# Written by `bandog adopt {found.unit}`, and yours to change; see bandog.yaml(5).",
        f"service: {_quoted(service)}",
        f"unit: {_quoted(found.unit)}",
    ]
    if gpus is not None:
        lines.append(f"gpus: {gpus if isinstance(gpus, str) else json.dumps(list(gpus))}")
    lines += _asked(found, command)
    if proposals:
        lines.append("profiles:")
        lines += [_profile(one, variable) for one in proposals]
    return "\n".join(lines) + "\n"


def _profile(one: Proposal, variable: str) -> str:
    env = f', env: {{{variable}: "{one.size}"}}' if variable else ""
    text = f"- {{count: {one.count}{env}}}"
    return f"  # {text}  {one.doubt}" if one.doubt else f"  {text}"


def _asked(found: Found, command: Command | None) -> Iterator[str]:
    """Yield how the service is asked whether it serves."""
    url = _url(found, command) if command is not None and command.engine else ""
    if command is None or not url:
        yield "ready: {unit: true}"
        return
    yield f'ready: {{http: "{url}/health"}}'
    if command.engine != "sglang" or "--enable-metrics" in command.words:
        yield f'progress: {{metrics: "{url}/metrics"}}'
    canary = f'canary: {{openai: "{url}"'
    if command.wants_key:
        yield f"# {canary}, credential: NAME}}  it wants an API key: put that into a credential"
    else:
        yield f"{canary}}}"


def _url(found: Found, command: Command) -> str:
    """Return where the server can be asked from this host, "" where that is not seen."""
    port = command.port
    host = command.option("--host", "--hostname") if not command.client else ""
    if command.client:
        networks = [*command.all_of("--network", "--net"), *found.text.values("Container", "Network")]
        if "host" not in networks:
            published = [*command.all_of("-p", "--publish"), *found.text.values("Container", "PublishPort")]
            port, host = _published(published, port)
    if port is None or (host and not re.fullmatch(r"[A-Za-z0-9.:-]+", host)):
        return ""
    here = "127.0.0.1" if host in ("", "0.0.0.0", "::", "localhost") else f"[{host}]" if ":" in host else host
    return f"http://{here}:{port}"


def _published(values: Sequence[str], inside: int | None) -> tuple[int | None, str]:
    """Return port and address on the host of a port inside the container; the only one that is published will do."""
    found = []
    for value in values:
        parts = value.partition("/")[0].rsplit(":", 2)
        if len(parts) > 1 and parts[-1].isdecimal() and parts[-2].isdecimal():
            found.append((int(parts[-1]), int(parts[-2]), parts[0].strip("[]") if len(parts) == 3 else ""))
    exact = [one for one in found if one[0] == inside]
    chosen = exact or (found if len(found) == 1 else [])
    return (chosen[0][1], chosen[0][2]) if chosen else (None, "")


def _quoted(text: str) -> str:
    return (
        text
        if re.fullmatch(r"[A-Za-z][A-Za-z0-9._-]*", text) and text not in ("true", "false", "null")
        else json.dumps(text)
    )

"""What the command line of a model server tells: engine, tensor parallel size, model, port, container. Pure.

The line is changed in place, as text, so that quoting, options and order stay the user's own. Options: the manuals of
`vllm serve`, `sglang.launch_server`, `text-generation-launcher`, `docker run` and `podman run`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..domain.model import EMPTY
from .adopt_text import expand, split
from .containers import named

ENGINES = ("docker", "podman", "nerdctl")
_CLIENTS = (*ENGINES, "docker-compose", "podman-compose")
_VERBS = ("run", "create", "start", "compose", "exec", "attach", "wait")
_PARALLEL = {
    "vllm": ("--tensor-parallel-size", "--tensor_parallel_size", "-tp"),
    "sglang": ("--tensor-parallel-size", "--tp-size", "--tp"),
    "tgi": ("--num-shard",),
}
_PIPELINE = ("--pipeline-parallel-size", "--pipeline_parallel_size", "--pp-size", "--pp", "-pp")
_DATA = ("--data-parallel-size", "--data_parallel_size", "--dp-size", "--dp", "-dp")
_MODEL = {"vllm": ("--model",), "sglang": ("--model-path", "--model"), "tgi": ("--model-id",)}
_CONTEXT = {"vllm": ("--max-model-len",), "sglang": ("--context-length",), "tgi": ("--max-total-tokens",)}
_SHARE = {
    "vllm": ("--gpu-memory-utilization",),
    "sglang": ("--mem-fraction-static",),
    "tgi": ("--cuda-memory-fraction",),
}
_PORT = {"vllm": 8000, "sglang": 30000, "tgi": 3000}
_DEFAULT_SHARE = {"vllm": 0.9, "sglang": 0.88, "tgi": 1.0}
_VISIBLE = re.compile(r"(?<![\w-])CUDA_VISIBLE_DEVICES=")
_PREFIX = re.compile(r"[@:+!-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """Where the tensor parallel size stands in the line: `count`, or the name of a `variable`, at `start:end`."""

    option: str
    count: int | None
    variable: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A line as it was read. `words` have their variables put in; a shell's own line is taken apart as well.

    `client` is docker, podman or nerdctl where the line runs a container, with `verb` run, start, compose…; `image`
    words of a quadlet are in `words` too. `wrapped` is true where a shell inside the line gets it as one word.
    """

    line: str
    words: tuple[str, ...]
    engine: str = ""
    client: str = ""
    verb: str = ""
    wrapped: bool = False
    literal: bool = False
    env: Mapping[str, str] = field(default_factory=lambda: EMPTY)

    @property
    def parallel(self) -> tuple[Parallel, ...]:
        """Return every place that names the tensor parallel size."""
        options = "|".join(re.escape(one) for one in _PARALLEL.get(self.engine, ()))
        if not options:
            return ()
        pattern = rf"(?:(?<=\s)|(?<=[\"']))({options})(?:=|\s+)(?:\$\{{?(?P<name>\w+)\}}?|(?P<count>\d+))(?=[\s\"']|$)"
        return tuple(
            Parallel(
                option=found[1],
                count=int(found["count"]) if found["count"] else None,
                variable=found["name"] or "",
                start=found.start("count") if found["count"] else found.end() - len(found["name"]),
                end=found.end(),
            )
            for found in re.finditer(pattern, self.line)
        )

    @property
    def others(self) -> int:
        """How many GPUs each rank of the tensor parallel group is multiplied by: pipeline and data parallel."""
        data = 1 if "--enable-dp-attention" in self.words else self._number(_DATA, 1)
        return max(1, self._number(_PIPELINE, 1)) * max(1, data)

    @property
    def nodes(self) -> int:
        """How many hosts the server spans."""
        return self._number(("--nnodes",), 1)

    @property
    def model(self) -> str:
        """The model as the server is given it: a path, or a name of the hub; "" where that is not seen."""
        named_ = self.option(*_MODEL.get(self.engine, ()))
        if named_ or self.engine != "vllm":
            return named_
        place = next((at for at, word in enumerate(self.words) if word == "serve"), None)
        after = self.words[place + 1 :] if place is not None else ()
        return after[0] if after and not after[0].startswith("-") else ""

    @property
    def context(self) -> int | None:
        """The longest context in tokens that the server is to hold, None where the model says."""
        text = self.option(*_CONTEXT.get(self.engine, ()))
        match = re.fullmatch(r"(\d+)([kK]?)", text)
        # vLLM's --max-model-len takes 32k as 32,000 and 32K as 32,768.
        return int(match[1]) * {"": 1, "k": 1000, "K": 1024}[match[2]] if match else None

    @property
    def share(self) -> float:
        """The share of a GPU's memory that the server takes."""
        text = self.option(*_SHARE.get(self.engine, ()))
        try:
            return float(text) if text else _DEFAULT_SHARE.get(self.engine, 0.9)
        except ValueError:
            return _DEFAULT_SHARE.get(self.engine, 0.9)

    @property
    def port(self) -> int | None:
        """The port that the server listens on, in its container where it has one."""
        if not self.engine:
            return None
        return self._number(("--port",), _PORT[self.engine]) or None

    @property
    def wants_key(self) -> bool:
        """Whether clients need an API key."""
        return any(word.startswith("--api-key") for word in self.words) or "VLLM_API_KEY" in self.env

    @property
    def sets_devices(self) -> bool:
        """Whether the line sets CUDA_VISIBLE_DEVICES itself, over whatever systemd gives it."""
        return _VISIBLE.search(self.line) is not None

    @property
    def container(self) -> str | None:
        """The name of the container that it starts, None without."""
        place = next((at for at, word in enumerate(self.words) if _base(word) == self.client), None)
        return named(self.words[place:]) if place is not None and self.client else None

    def option(self, *names: str) -> str:
        """Return the value of the last of these options, "" without."""
        found = ""
        for at, word in enumerate(self.words):
            if word in names and at + 1 < len(self.words):
                found = self.words[at + 1]
            elif word.partition("=")[0] in names and "=" in word:
                found = word.partition("=")[2]
        return found

    def all_of(self, *names: str) -> tuple[str, ...]:
        """Return the values of each of these options."""
        found = []
        for at, word in enumerate(self.words):
            if word in names and at + 1 < len(self.words):
                found.append(self.words[at + 1])
            elif word.startswith("--") and word.partition("=")[0] in names and "=" in word:
                found.append(word.partition("=")[2])
        return tuple(found)

    def _number(self, names: Sequence[str], otherwise: int) -> int:
        text = self.option(*names)
        return int(text) if text.isdecimal() else otherwise


def read(line: str, env: Mapping[str, str] = EMPTY, *, image: str = "") -> Command:
    """Return what a line of `ExecStart=` tells, or of a quadlet's `Exec=` with its `image`."""
    prefix = _PREFIX.match(line)
    assert prefix is not None
    bare = line if image else line[prefix.end() :]
    whole = [expand(word, dict(env)) for word in split(bare)]
    flat = [inner for word in whole for inner in (split(word) if re.search(r"\s", word.strip()) else [word])]
    client, verb = ("podman", "run") if image else _client(flat)
    return Command(
        line=line,
        words=tuple([image, *flat] if image else flat),
        engine=_engine([image, *flat] if image else flat),
        client=client,
        verb=verb,
        wrapped=len(flat) != len(whole),
        literal=not image and ":" in prefix[0],
        env=env,
    )


def _client(words: Sequence[str]) -> tuple[str, str]:
    for at, word in enumerate(words):
        if _base(word) in _CLIENTS and (at == 0 or not words[at - 1].startswith("--")):
            if _base(word).endswith("-compose"):
                return _base(word).removesuffix("-compose"), "compose"
            rest = [one for one in words[at + 1 :] if not one.startswith("-") and one != "container"]
            return _base(word), next((one for one in rest if one in _VERBS), rest[0] if rest else "")
    return "", ""


def _engine(words: Sequence[str]) -> str:
    names = {
        _base(word).partition(":")[0].partition("@")[0]
        for at, word in enumerate(words)
        if at == 0 or words[at - 1] not in ("--name", "--hostname", "--network", "--served-model-name")
    }
    if "sglang" in names or any(one.startswith("sglang.") for one in names):
        return "sglang"
    if names & {"text-generation-launcher", "text-generation-inference"}:
        return "tgi"
    if names & {"vllm", "vllm-openai"} or any(one.startswith("vllm.entrypoints") for one in names):
        return "vllm"
    return ""


def _base(word: str) -> str:
    return word.rpartition("/")[2]

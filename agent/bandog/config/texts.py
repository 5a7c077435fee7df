"""Every text that `bandog check` can say, in one place, so that a test can ask for an example of each.

Each names the thing, the value and the way out (STYLE 17). `{hint}` is `; did you mean "x"?` or
the list of what is known.
"""

from __future__ import annotations

import types
from collections.abc import Mapping

TEXTS: Mapping[str, str] = types.MappingProxyType(
    {
        # files
        "unreadable": "cannot be read: {why}",
        "not-a-file": "is no regular file; only regular files and links to them are read",
        "too-large": "is larger than 1 MiB; no file of bandog's needs that",
        "suffix": "is not read: only files named *.yaml are; rename it, or move it out of {folder}",
        "which-file": "is neither a main file, a policy nor a service; a policy begins with "
        '"policy: NAME", a service with "service: NAME"',
        "empty-service": "is empty; remove it, or write a service",
        # YAML
        "not-utf8": "byte 0x{byte} is no UTF-8; save the file as UTF-8",
        "control": "character U+{char} is not allowed; remove it",
        "tab": "there is a tab; use blanks",
        "yaml": "no valid YAML: {why}",
        "colon": '": " is not allowed here; put quotes around text that holds it, or mend the indentation',
        "directive": "directives (%YAML, %TAG) are not read; remove the line",
        "documents": "a second document begins here; write one document a file",
        "anchor": "anchors (&name) are not read; write the value where it is used",
        "alias": "aliases (*name) are not read; write the value again, or put quotes around it",
        "tag": "tags (!name) are not read; put quotes around text that begins with !",
        "nesting": "nested deeper than 50 levels",
        "complex-key": "a key must be one word, not a list or a map",
        "duplicate-key": 'key "{key}" is there twice; the first is in line {line}',
        # shape
        "not-a-map": "must be a map (key: value), not {value}",
        "unknown-key": 'unknown key "{key}"{hint}',
        "missing-key": 'key "{key}" is missing; {example}',
        "text-wanted": "must be text, not {value}; put quotes around it",
        "number-wanted": "must be a whole number, not {value}",
        "float-wanted": "must be a number, not {value}",
        "bool-wanted": "must be true or false, not {value}",
        "list-wanted": "must be a list ([a, b]), not {value}",
        "one-of": "must be {wanted}, not {value}{hint}",
        "too-small": "must be at least {least}, not {value}",
        "too-large-number": "must be at most {most}, not {value}",
        "empty": "must not be empty",
        "option": "{why}",
        # values
        "duration": "{value} is no duration; write a number with a unit, like 30s, 10m, 24h or 7d",
        "rate": '{value} is no limit; write a number and a duration, like "5 per 1h"',
        "count": '{value} is no count; write a number and a duration, like "3 within 10m"',
        "size": "{value} is no size; write a number with a unit, like 512KiB, 32MiB or 1GiB",
        "name": "{value} is no name; use letters, digits, dots, dashes and underscores, 64 at most",
        "mode": "{value} is no mode; write observe, enforce or a list of actions like [restart]",
        "fact-test": "{value} is no test; write a value, a list of values, or a map of min, max, glob",
        "min-max": "min {least} is above max {most}, so that nothing ever matches",
        "url": "{value} is no URL; write one that begins with http:// or https://",
        "notify-url": '{value} is no target; write "credential:NAME", "file:/PATH" or an Apprise URL',
        "absolute-path": "{value} is no absolute path; begin it with /",
        "tcp": '{value} is no address; write host:port, like "127.0.0.1:8000"',
        "time": '{value} is no time of day; write hours and minutes, like "02:00"',
        "zone": "unknown time zone {value}; write a name like Europe/Berlin or UTC (Debian package tzdata)",
        "unit": "{value} is no service unit; write its full name, like vllm.service",
        "unit-template": "{value} is a template and cannot run; name an instance, like {instance}",
        "unit-ours": "{value} is bandog itself, which must not act on itself; name the unit of a model server",
        "gpu": '{value} is no GPU; write "all" or a list of PCI addresses (0000:e5:00.0) and UUIDs (GPU-...)',
        "env-name": "{value} is no name of a variable; use letters, digits and underscores, no digit first",
        "env-ours": "{value} is set by bandog itself, for the GPUs that it chose; leave it out",
        "env-value": "{value} is no value of a variable; systemd takes no control characters but tab and newline",
        "exactly-one": "needs exactly one of {names}; {found}",
        # what is named elsewhere
        "unknown-kind": "no finding is of kind {value}{hint}",
        "unknown-fact": 'kind {kind} has no fact "{fact}"{hint}',
        "fact-type": "fact {fact} is {type}, so that {value} never matches",
        "unknown-action": 'unknown action "{name}"{hint}',
        "unknown-name": "unknown name ${name}{hint}",
        "lone-dollar": "a $ with no name after it; write $$ for the sign itself",
        "unknown-target": 'no notify target is called "{name}"{hint}',
        "unknown-plugin": 'unknown plugin "{name}"{hint}',
        "plugin-options": "must be a map of options, or off, not {value}",
        "unknown-budget": 'no budget is called "{name}"{hint}',
        "duplicate-policy": 'policy "{name}" is already in {other}; rename one of them',
        "duplicate-service": 'service "{name}" is already in {other}; rename one of them',
        "duplicate-unit": 'unit {unit} already belongs to service "{name}" in {other}; a unit has one service',
        # warnings
        "hides-shipped": "replaces a shipped policy that may have changed since; compare it with {other}, "
        'then write the line "# replaces: {digest}"',
        "never-reached": '"{name}" never gets a finding: {other}, which comes first by its file name, would take each; '
        "begin this file's name with a lower number, like 010-",
        "no-window": "waits for a window, and none is set; it will ask a person instead",
        "nobody-told": 'no notify target is called "{name}", which the shipped policies tell; '
        "set notify: in bandog.yaml, else only the console hears of it",
        "credential-missing": 'credential "{name}" is not there yet; write it to {where} (root only)',
        "secret-readable": "holds a notification URL and can be read by others; run: chmod 600 {name}",
        "plugin-off-unknown": 'there is no plugin "{name}" to switch off{hint}',
    }
)

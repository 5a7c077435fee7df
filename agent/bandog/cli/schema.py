"""`bandog schema`: the JSON Schema of the configuration files, for editors."""

from __future__ import annotations

import json

import click


@click.command()
@click.argument("kind", type=click.Choice(["main", "policy", "service"]))
def schema(kind: str) -> None:
    """Print the JSON Schema of a main file, a policy or a service.

    Editors with a YAML language server use it when the file begins with
    `# yaml-language-server: $schema=/usr/share/bandog/schema/policy.json`.
    """
    from ..config.schema import json_schema

    click.echo(json.dumps(json_schema(kind), indent=2))

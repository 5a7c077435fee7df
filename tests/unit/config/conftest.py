"""What the configuration's tests share: the real plugins' catalogue and a directory to write into."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bandog.config import Loaded, PluginCatalogue, load
from bandog.host.paths import Paths
from bandog.pluginloader import load_catalogue


@pytest.fixture(scope="session")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> PluginCatalogue:
    """What the shipped plugins provide."""
    loaded = load_catalogue(Paths(root=tmp_path_factory.mktemp("root")))
    assert loaded.broken == ()
    return loaded


Write = Callable[..., Loaded]


@pytest.fixture
def configuration(tmp_path: Path, catalogue: PluginCatalogue) -> Write:
    """Return how to write files (name → text) below a configuration directory and load it."""

    def write(shipped: dict[str, str] | None = None, **options: object) -> Loaded:
        etc, policies = tmp_path / "etc/bandog", tmp_path / "shipped"
        policies.mkdir(exist_ok=True)
        for name, text in (shipped or {}).items():
            (policies / name).write_text(text)
        files = options.pop("files", {})
        assert isinstance(files, dict)
        for name, text in files.items():
            (etc / name).parent.mkdir(parents=True, exist_ok=True)
            (etc / name).write_text(text)
        plugins = options.pop("plugins", catalogue)
        assert isinstance(plugins, PluginCatalogue)
        return load(Paths(root=tmp_path), plugins=plugins, config_dir=etc, policies_dir=policies, environ={})

    return write

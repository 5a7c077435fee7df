"""Configuration: layers of YAML become checked, frozen values (`load`); see `settings.Config`."""

from __future__ import annotations

from .catalogue import PluginCatalogue, build_catalogue
from .loading import load
from .problems import Problem
from .settings import Config, Loaded, NotifyTarget

__all__ = ["Config", "Loaded", "NotifyTarget", "PluginCatalogue", "Problem", "build_catalogue", "load"]

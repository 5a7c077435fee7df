"""Loads of Apprise what the configured addresses need, and nothing else.

At its first address Apprise imports all of its two hundred services: 9 MiB that stay, and half a
second of CPU beside the start. The services that people use most are named here and added one by
one; any other address makes Apprise load all of them, as it does by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from tempfile import TemporaryDirectory
from typing import Any

SERVICES: Mapping[str, str] = {
    "discord": "discord.NotifyDiscord",
    "form": "custom_form.NotifyForm",
    "forms": "custom_form.NotifyForm",
    "gchat": "google_chat.NotifyGoogleChat",
    "gotify": "gotify.NotifyGotify",
    "gotifys": "gotify.NotifyGotify",
    "json": "custom_json.NotifyJSON",
    "jsons": "custom_json.NotifyJSON",
    "mailto": "email.NotifyEmail",
    "mailtos": "email.NotifyEmail",
    "matrix": "matrix.NotifyMatrix",
    "matrixs": "matrix.NotifyMatrix",
    "mmost": "mattermost.NotifyMattermost",
    "mmosts": "mattermost.NotifyMattermost",
    "ntfy": "ntfy.NotifyNtfy",
    "ntfys": "ntfy.NotifyNtfy",
    "opsgenie": "opsgenie.NotifyOpsgenie",
    "pagerduty": "pagerduty.NotifyPagerDuty",
    "pover": "pushover.NotifyPushover",
    "rocket": "rocketchat.NotifyRocketChat",
    "rockets": "rocketchat.NotifyRocketChat",
    "slack": "slack.NotifySlack",
    "tgram": "telegram.NotifyTelegram",
    "workflow": "workflows.NotifyWorkflows",
    "workflows": "workflows.NotifyWorkflows",
    "xml": "custom_xml.NotifyXML",
    "xmls": "custom_xml.NotifyXML",
}
"""Scheme of an address → module and class below `apprise.plugins`; a test holds it to Apprise's own map."""


def provide(apprise: Any, scheme: str) -> None:
    """Make `scheme` known to Apprise's one plugin manager; call it before an address is opened."""
    manager = apprise.NotificationManager()
    if not manager:
        if scheme not in SERVICES:
            return  # The manager loads everything by itself once it is asked.
        _load_nothing(manager)
    if scheme in manager:
        return
    if scheme not in SERVICES:
        manager.unload_modules()  # What is open already stays as it is.
        return
    module, _, name = SERVICES[scheme].partition(".")
    manager.add(getattr(import_module(f"apprise.plugins.{module}"), name))


def _load_nothing(manager: Any) -> None:
    """Let the manager take an empty folder for its services: it asks for no others from then on."""
    try:
        with TemporaryDirectory(prefix="bandog-") as empty:
            manager.load_modules(path=empty)
    except OSError:  # No place for a folder: then all of them.
        manager.load_modules()

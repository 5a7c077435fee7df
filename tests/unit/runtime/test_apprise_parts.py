"""Only those parts of Apprise are loaded that an address needs. In processes of their own: a manager is one for all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
OPEN = """
import sys
sys.path.insert(0, sys.argv[1])
from sinks import SmtpSink, WebhookSink
from bandog.runtime.letters import Mail
from bandog.runtime.outlets import AppriseOutlet, OutletError
from bandog.runtime.secrets import Secrets

def loaded():
    return sum(name.startswith("apprise.plugins.") and name.count(".") == 2 for name in sys.modules)

def opens(url):
    return AppriseOutlet(url, Secrets())
"""


def run(body: str) -> str:
    """Run a program and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", OPEN + body, str(HERE)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_schemes_lead_to_what_apprise_itself_has_for_them() -> None:
    told = run("""
import apprise
from bandog.runtime.apprise_parts import SERVICES
manager = apprise.NotificationManager()
manager.load_modules()
for scheme, place in SERVICES.items():
    module, _, name = place.partition(".")
    found = manager[scheme]
    if found.__name__ != name or not found.__module__.startswith("apprise.plugins." + module):
        print(scheme, place, found)
""")
    assert told == ""


def test_mail_and_a_chat_load_two_services_and_deliver() -> None:
    told = run("""
with SmtpSink() as smtp, WebhookSink() as web:
    outlets = [opens(smtp.url), opens(web.url), opens(web.url)]
    print([one.send(Mail(title="t", body="b")) for one in outlets])
    smtp.wait(1), web.wait(2)
print(loaded() < 6)
""")
    assert told == "[None, None, None]\nTrue\n"


def test_an_address_of_a_rare_service_loads_all_and_leaves_what_is_open() -> None:
    told = run("""
with WebhookSink() as web:
    first = opens(web.url)
    few = loaded()
    opens("prowl://" + "a" * 40)
    print(few < 6, loaded() > 50)
    print([one.send(Mail(title="t", body="b")) for one in (first, opens(web.url))])
    web.wait(2)
""")
    assert told == "True True\n[None, None]\n"


def test_an_unknown_scheme_is_refused_whichever_comes_first() -> None:
    told = run("""
for url in ("nonsense://host", "json://127.0.0.1:9/", "nonsense://host"):
    try:
        opens(url)
        print("open")
    except OutletError as error:
        print("refused")
""")
    assert told == "refused\nopen\nrefused\n"

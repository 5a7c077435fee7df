"""Example plugin: a coolant pump that stops is switched on again."""
import re
from pathlib import Path
import bandog
SWITCH = Path("/run/bandog/pump")
class Coolant(bandog.LogDetector):
    name, needles, emits = "coolant", (b"coolant pump",), {"coolant.pump-stopped": {"pump": int}}
    def feed(self, record):
        if found := re.match(r"coolant pump (\d+) stopped", record.text):
            yield bandog.Finding.of(record, kind="coolant.pump-stopped", subject=f"pump:{found[1]}",
                                    severity=bandog.Severity.ERROR, facts={"pump": int(found[1])})
class SwitchOn(bandog.Action):
    name = "switch-on"
    def run(self, request, site): SWITCH.write_text("on"); return bandog.Result.done("switched on")
    def prove(self, request, result, site):
        return bandog.Proof.proved("it runs") if SWITCH.exists() else bandog.Proof.not_yet("no sign yet")
@bandog.hookimpl
def register_detectors(register): register(Coolant)
@bandog.hookimpl
def register_actions(register): register(SwitchOn)

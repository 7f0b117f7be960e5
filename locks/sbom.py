"""Makes sbom.cdx.json, the software bill of materials: `make sbom`. See "Dependencies" in CONTRIBUTING.md.

It has what any lock of the repository can install. CycloneDX's tool reads the locks. This file adds the licences, and removes
what says nothing or differs from machine to machine.
"""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

PROJECT = Path(__file__).resolve().parents[1]
LOCKS = [
    PROJECT / "requirements.lock",
    *sorted((PROJECT / "locks").glob("*.lock")),
    *sorted((PROJECT / "plugins").glob("*/requirements.lock")),
]
SBOM = PROJECT / "locks" / "sbom.cdx.json"


def locked() -> str:
    """Each version of each distribution once, as the first lock has it. That all locks have the same hashes is tested."""
    found: dict[str, str] = {}
    for lock in LOCKS:
        for block in re.split(r"\n(?=\S)", lock.read_text(encoding="utf-8")):
            if entry := re.match(r"([a-z0-9][\w.-]*)(?:\[.*?\])?(==[^ ;\\\n]+)", block):
                found.setdefault(entry[1] + entry[2], block)
    return "\n".join(found[each] for each in sorted(found)) + "\n"


def sbom() -> dict[str, Any]:
    """What the tool makes of the locks, with licences."""
    words = ["requirements", "-", "--pyproject", "pyproject.toml", "--output-reproducible", "--short-PURLs"]
    command = [sys.executable, "-W", "ignore", "-m", "cyclonedx_py", *words]
    made = json.loads(
        subprocess.run(command, cwd=PROJECT, input=locked(), capture_output=True, check=True, encoding="utf-8").stdout
    )
    with (PROJECT / "locks" / "licences.csv").open(encoding="utf-8", newline="") as file:
        licences = {row["package"]: row["licence"] for row in csv.DictReader(file)}
    for component in made["components"]:
        # The tool's description is the lock's lines once more. Its reference is a line number, which every other change moves.
        del component["description"]
        component["bom-ref"] = component["purl"]
        component["licenses"] = [{"expression": licences[component["name"]]}]
        for reference in component["externalReferences"]:
            # A URL is required. The registry is the user's choice; the hashes hold wherever a file comes from.
            reference["url"] = component["purl"]
            del reference["comment"]
    made["components"].sort(key=lambda component: component["purl"])
    # Without edges it would say that nothing requires anything.
    del made["dependencies"]
    made["metadata"].pop("timestamp", None)  # There is one where SOURCE_DATE_EPOCH is set.
    for tool in made["metadata"]["tools"]["components"]:
        del tool["externalReferences"]
    return made


if __name__ == "__main__":
    bom = sbom()
    lines = ",\n".join(json.dumps(component, sort_keys=True) for component in bom.pop("components"))
    head = json.dumps(bom, indent=1, sort_keys=True).removesuffix("\n}")
    text = f'{head},\n "components": [\n{lines}\n ]\n}}\n'
    if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        sys.exit(f"What was made is no CycloneDX 1.6: {error}")
    SBOM.write_text(text, encoding="utf-8")

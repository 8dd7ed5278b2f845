"""Write the results of the Rust benchmarks to benches/results, with what they were measured on.

`collect.py rust` gathers what criterion left in CRITERION_HOME; `collect.py memory` reads the soak's JSON from standard
input, and fails if the soak did; `collect.py events` reads that of the events' bench, and `.cache/exact.json`;
`collect.py policy` reads that of `trunkline bench policy`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from trunkline.bench.facts import facts

RESULTS = Path(__file__).resolve().parent / "results"


def main(arguments: list[str]) -> int:
    """Collect one kind of result; return the exit code."""
    if arguments == ["rust"]:
        _write("rust", "make bench-rust", {"rows": criterion(Path(os.environ["CRITERION_HOME"]))})
        return 0
    if arguments == ["memory"]:
        found = json.load(sys.stdin)
        _write("memory", "make bench-memory", found)
        print(f"peak {found['peak_resident_mib']:.1f} MiB resident at a budget of {found['budget_mib']} MiB")
        return 0 if found["passed"] else 1
    if arguments == ["policy"]:
        found = json.load(sys.stdin)
        _write("policy", "make bench-policy", found)
        print(f"{found['missed']} of {len(found['lines'])} lines missed")
        return 0
    if arguments == ["events"]:
        requests = json.loads(Path(".cache/exact.json").read_text(encoding="utf-8"))
        found = json.load(sys.stdin)
        _write(
            "events",
            "make bench-events",
            {**found, "requests": requests["rows"], "peers": requests["facts"]["versions"]},
        )
        return 0
    print(__doc__, file=sys.stderr)
    return 2


def criterion(home: Path) -> list[dict[str, Any]]:
    """Return each benchmark's median and its 95 % interval in nanoseconds of CPU, in the order of their names."""
    rows = []
    for path in home.glob("**/new/benchmark.json"):
        names = json.loads(path.read_text(encoding="utf-8"))
        median = json.loads((path.parent / "estimates.json").read_text(encoding="utf-8"))["median"]
        interval = median["confidence_interval"]
        rows.append(
            {
                "group": names["group_id"],
                "function": names["function_id"],
                "value": names["value_str"],
                "ns": median["point_estimate"],
                "low_ns": interval["lower_bound"],
                "high_ns": interval["upper_bound"],
            }
        )
    return sorted(rows, key=lambda row: (row["group"], row["function"] or "", int(row["value"] or 0)))


def _write(kind: str, command: str, found: dict[str, Any]) -> None:
    about = facts(command)
    rustc = subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=True)  # noqa: S607
    about["versions"]["rustc"] = rustc.stdout.split()[1]
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{kind}.json"
    path.write_text(json.dumps({"kind": kind, "facts": about, **found}, indent=2) + "\n", encoding="utf-8")
    print(f"wrote {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path.name}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

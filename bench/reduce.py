"""`python -m bench.reduce IN.json OUT.json`: what is worth keeping of a pytest-benchmark file.

Medians and what the harness noted, without host names, users and every single round.
"""

import json
import sys

KEPT = ("name", "group")


def main(source: str, target: str) -> None:
    with open(source, encoding="utf-8") as file:
        data = json.load(file)
    cpu = data["machine_info"].get("cpu", {})
    reduced = {
        "command": "pytest bench --benchmark-only --benchmark-json=IN.json",
        "datetime": data["datetime"],
        "machine": {"processor": cpu.get("brand_raw"), "cores": cpu.get("count")},
        "python": data["machine_info"]["python_version"],
        "benchmarks": [
            {name: bench[name] for name in KEPT}
            | {"median_seconds": bench["stats"]["median"], "rounds": bench["stats"]["rounds"]}
            | bench["extra_info"]
            for bench in data["benchmarks"]
        ],
    }
    with open(target, "w", encoding="utf-8") as file:
        json.dump(reduced, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main(*sys.argv[1:3])

"""Helpers of the benchmark scripts: rows as JSON lines, and failures as one line."""

import json
import subprocess
import sys


def append_json(path, rows):
    """Adds one JSON object a line to the file, if there is a path."""
    if path:
        with open(path, "a", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps(row, separators=(",", ":")) + "\n")


def run(name, main):
    """Exits with the result of main(). If a program or call fails, prints one line and exits with 1."""
    try:
        sys.exit(main())
    except (RuntimeError, subprocess.SubprocessError, OSError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)

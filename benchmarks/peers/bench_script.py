"""The end of each benchmark script: its rows as JSON lines, and how it fails."""

import json
import subprocess
import sys


def append_json(path, rows):
    """Adds one JSON object a line to the file, if there is a path."""
    if path:
        with open(path, "a") as file:
            for row in rows:
                file.write(json.dumps(row, separators=(",", ":")) + "\n")


def run(name, main):
    """Exits with what main() returns; with one line and 1 when what it ran failed."""
    try:
        sys.exit(main())
    except (RuntimeError, subprocess.SubprocessError, OSError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)

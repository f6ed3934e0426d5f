#!/usr/bin/env python3
"""Writes compile_commands.json, from which clangd knows how each file is compiled."""

import argparse
import json
import os
import pathlib
import subprocess
import sys

TOP = pathlib.Path(os.environ.get("VERBENA_TOP") or pathlib.Path(__file__).parents[2]).resolve()
BAZEL = TOP / "tools/dev/bazel.sh"

# Flags that name what a compiler writes: clangd writes nothing. It precompiles by itself.
OUTPUTS = {"-o", "-MF", "-include-pch"}
QUIET = {"-MD", "-c"}


def bazel(*arguments):
    return subprocess.run([str(BAZEL), *arguments], cwd=TOP, check=True, stdout=subprocess.PIPE,
                          text=True).stdout


def command(arguments, source, execroot):
    """One entry: `arguments` without outputs, and with `source` where an editor opens it."""
    kept = []
    words = iter(arguments)
    for word in words:
        if word in OUTPUTS:
            next(words)
        elif word == source:
            kept.append(str(TOP / source))
        elif word not in QUIET:
            kept.append(word)
    return {"directory": execroot, "file": str(TOP / source), "arguments": kept}


def entries(actions, execroot):
    """An entry for each source file of this workspace. Bazel compiles some in several targets, with
    the same flags but for paths of headers: the first one counts."""
    found = {}
    for action in actions:
        arguments = action["arguments"]
        source = next((word for flag, word in zip(arguments, arguments[1:]) if flag == "-c"), None)
        if source is not None and source not in found and (TOP / source).is_file():
            found[source] = command(arguments, source, execroot)
    return [found[source] for source in sorted(found)]


def main():
    parser = argparse.ArgumentParser(
        prog="./dev compdb",
        description="Writes compile_commands.json for clangd and other tools that read it, after "
                    "generating the headers that protocol files become. Run it again when a BUILD "
                    "or .proto file has changed.")
    parser.parse_args()
    try:
        print("Generating headers ...", file=sys.stderr)
        # By the configuration of ./dev lint, which compiles each source by itself.
        bazel("build", "--config=lint", "--ui_event_filters=-info", "--noshow_progress",
              "--output_groups=compilation_prerequisites_INTERNAL_", "//...")
        print("Reading the commands ...", file=sys.stderr)
        graph = bazel("aquery", "--config=lint", "--noshow_progress", "--ui_event_filters=-info",
                      "--output=jsonproto", "mnemonic('CppCompile', //...)")
        execroot = bazel("info", "execution_root").strip()
    except subprocess.CalledProcessError as error:
        sys.exit(f"dev compdb: bazel failed ({error.returncode}); what it printed is above")
    written = entries(json.loads(graph)["actions"], execroot)
    (TOP / "compile_commands.json").write_text(json.dumps(written, indent=1) + "\n")
    print(f"compile_commands.json: {len(written)} files")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Format, static analysis, layering, spelling and allowed dependencies of the sources."""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading

import awaits
import bazel_events
import changes
import errors
import includes
import layers
import prose
import rvalues

TOP = bazel_events.TOP
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / \
    "verbena-lint"
PACKAGES = pathlib.Path(__file__).parent / "packages.txt"
# It takes half of clang-tidy's time.
ANALYZER = "clang-analyzer-*"
# In tests, a coroutine lambda ends before the variables that it captures by reference. Growing
# vectors cost nothing there, nor do copies, which coroutines often need. A call gives the Payload
# that was moved into it back to the same variable. What the analyzer guesses at the sanitizers see
# when they run the tests.
NOT_IN_TESTS = ("-cppcoreguidelines-avoid-capturing-lambda-coroutines,"
                "-bugprone-use-after-move,"
                "-performance-inefficient-vector-operation,"
                "-performance-unnecessary-copy-initialization,"
                "-performance-unnecessary-value-param,"
                f"-{ANALYZER}")
# Others wrote these, or programs did.
NOT_SPELT = ("third_party/stubs/", "tests/rpc/codegen/testdata/", "tests/fuzz/corpus/")
NOT_TEXT = (".json", ".svg", ".golden")


def arguments():
    parser = argparse.ArgumentParser(
        prog="./dev lint", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Checks the sources without running them.",
        epilog="checks:\n"
               "  format   clang-format-19, as ./dev fmt would leave the file\n"
               "  layers   the table of allowed dependencies, tools/folders.bzl\n"
               "  prose    a test file opens with a comment that says what its tests prove\n"
               "  errors   a failed Status that rpc/ or transport/ hands on by hand, not by a macro\n"
               "  awaits   an await that gcc runs though its expression does not ask for it\n"
               "  rvalues  a coroutine that takes an rvalue reference, which dangles once it is suspended\n"
               "  shellcheck\n"
               "           shell scripts\n"
               "  pylint   Python: errors, and the warnings that .pylintrc names\n"
               "  codespell\n"
               "           misspelt words in documents and sources; .codespellrc names exceptions\n"
               "  reuse    each file says its licence, or .reuse/dep5 does for it\n"
               "  build    layering_check and parse_headers, by building every target; part of tidy\n"
               "  tidy     clang-tidy-19 with .clang-tidy; what was clean is remembered by content. Sources of tests,\n"
               "           and the analyzer, which is slow, only with --deep, --changed or files\n"
               "  portable\n"
               "           gcc 12 parses all sources, though it may not run them; likewise remembered")
    parser.add_argument("--only", metavar="CHECK[,CHECK]",
                        default=",".join(CHECKS), help="only these checks")
    parser.add_argument("--changed", action="store_true",
                        help="look only at files that differ from the main branch's")
    parser.add_argument("--deep", action="store_true",
                        help="with tidy also the analyzer, and sources of tests")
    parser.add_argument("files", nargs="*", help="look only at these files")
    options = parser.parse_args()
    options.only = options.only.split(",")
    options.deep |= options.changed or bool(options.files)
    if {"tidy", "portable"} & set(options.only):
        options.only.append("build")  # generated headers must be there
    for name in options.files:
        if not pathlib.Path(name).is_file():
            parser.error(f"there is no file '{name}'")
    for check in options.only:
        if check not in CHECKS:
            parser.error(f"there is no check '{check}'; checks: {', '.join(CHECKS)}")
    return options


def chosen_files(options):
    """The files to look at, relative to the top, sorted."""
    if options.files:
        names = [os.path.relpath(os.path.abspath(name), TOP) for name in options.files]
    else:
        names = changes.git("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if options.changed:
        changed = changes.changed_files(changes.base())
        names = [name for name in names if name in changed]
    return sorted({name for name in names if name and (TOP / name).is_file()})


def in_parallel(function, items):
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(function, items))


def sources(files):
    return [name for name in files if name.endswith((".h", ".cc"))]


def check_format(files):
    def badly_formatted(batch):
        result = subprocess.run(["clang-format-19", "--dry-run", "-Werror", *batch], cwd=TOP,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                check=False)
        return result.stdout
    names = sources(files)
    output = in_parallel(badly_formatted, [names[i:i + 16] for i in range(0, len(names), 16)])
    bad = sorted(set(re.findall(r"^(\S+?):\d+:\d+: error", "".join(output), re.MULTILINE)))
    return [f"{name}: run ./dev fmt" for name in bad]


def check_layers(files):
    found = []
    for name in files:
        if name.endswith((".h", ".cc")) or os.path.basename(name) == "BUILD":
            found += layers.check(name, (TOP / name).read_text())
    for folder in layers.ORDERED:
        rooms = {f"{folder}/{path.name}": path.read_text() for path in (TOP / folder).iterdir()
                 if path.suffix in (".h", ".cc")}
        found += layers.check_order(folder, (TOP / folder / "README.md").read_text(), rooms)
    return found


def check_prose(files):
    return [message for name in files if prose.is_test(name)
            for message in prose.check(name, (TOP / name).read_text())]


def check_errors(files):
    return [message for name in files if name.endswith((".h", ".cc"))
            for message in errors.check(name, (TOP / name).read_text())]


def check_awaits(files):
    return [message for name in files if awaits.is_checked(name)
            for message in awaits.check(name, (TOP / name).read_text())]


def check_rvalues(files):
    return [message for name in files if rvalues.is_checked(name)
            for message in rvalues.check(name, (TOP / name).read_text())]


def check_build(_):
    # The flags are in .bazelrc: a target that includes what it does not depend on, a header that
    # does not compile alone, or a file that does not include what it uses, does not build.
    status, events = bazel_events.run("build", ["--config=lint", "--keep_going", "//..."])
    unbuilt = [f"{label}: does not build" for label in bazel_events.unbuilt_targets(events)]
    return unbuilt or ([f"bazel build: exit status {status}"] if status else [])


def compile_commands():
    """Source file -> the arguments of its compile, as Bazel would run it."""
    result = subprocess.run(
        [bazel_events.BAZEL, "aquery", "--config=lint", "--output=jsonproto", "--noshow_progress",
         "--ui_event_filters=-info", 'mnemonic("CppCompile", //...)'],
        cwd=TOP, stdout=subprocess.PIPE, check=True)
    commands = {}
    for action in json.loads(result.stdout).get("actions", []):
        compiler_arguments = action["arguments"]
        if "-c" not in compiler_arguments:
            continue
        source = compiler_arguments[compiler_arguments.index("-c") + 1]
        # Sources that must not compile are no subject for clang-tidy.
        if "-verify" in " ".join(compiler_arguments):
            continue
        if source.endswith(".cc"):
            commands.setdefault(source, compiler_arguments[1:])
    return commands


def execution_root():
    return pathlib.Path(subprocess.run(
        [bazel_events.BAZEL, "info", "execution_root"], cwd=TOP, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, check=True).stdout.strip())


def tidy_arguments(compiler_arguments):
    """A compile's arguments without outputs and without what serves layering_check alone."""
    kept = []
    skip = False
    for argument in compiler_arguments:
        if skip:
            skip = False
        elif argument in ("-o", "-c", "-MF"):
            skip = True
        elif argument not in ("-MD", "-Werror") and not argument.startswith(
                ("-fmodule", "-fno-canonical", "-Xclang=-fmodule", "-frandom-seed")):
            kept.append(argument)
    return [each for each in kept if each not in ("-Xclang", "-fno-cxx-modules")]


def portable_arguments(compiler_arguments):
    """Of a compile's arguments those that gcc understands alike: where headers are, and macros."""
    kept = ["-std=c++20", "-fsyntax-only", "-w", "-DVERBENA_SYNTAX_ONLY"]
    takes_next = False
    for argument in compiler_arguments:
        if takes_next or argument.startswith(("-I", "-D", "-iquote", "-isystem")):
            takes_next = argument in ("-I", "-D", "-iquote", "-isystem")
            kept.append(argument)
    return kept


def include_directories(compiler_arguments):
    """Where a compile looks for headers, in its order."""
    found = []
    for argument, following in zip(compiler_arguments, [*compiler_arguments[1:], ""]):
        if argument in ("-I", "-iquote", "-isystem"):
            found.append(following)
        elif argument.startswith("-I"):
            found.append(argument[2:])
    return found


def installed(tool):
    """What the findings of `tool` depend on besides sources: its version, and those of packages."""
    packages = {line.split()[1] for line in PACKAGES.read_text().splitlines()
                if line.startswith("build ")}
    said = [subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                           check=False).stdout
            for command in ([tool, "--version"], ["dpkg-query", "-W", *sorted(packages)])
            if shutil.which(command[0])]
    return "".join(said)


def look_at_compiled(sources_of, command, root, stricter=None):
    """Runs `command(name)` in `root` for each source that is not known to be clean. `sources_of`:
    to each the names of the files that the findings depend on, besides the command. A source that is
    clean to `stricter(name)` is not looked at."""
    if not sources_of:
        return set()
    tool = command(next(iter(sources_of)))[0]
    if not shutil.which(tool):
        print(f"there is no {tool}; run: ./dev install-deps lint")
        return {tool}
    CACHE.mkdir(parents=True, exist_ok=True)
    versions = installed(tool)
    told = set()
    lock = threading.Lock()

    def tell(text):
        # Printed at once, because a first run takes long. Printed once only, because a finding in
        # a header comes again with each file that includes it, and gcc says first which that is.
        finding = "\n".join(line for line in text.splitlines() if " error: " in line) or text
        with lock:
            if finding not in told:
                told.add(finding)
                print(text, flush=True)

    def known_as(name, by=command):
        digest = hashlib.sha256((repr(by(name)) + versions).encode())
        for path in sorted(sources_of[name]):
            there = TOP / path if (TOP / path).is_file() else root / path
            digest.update(path.encode() + b"\0" + there.read_bytes())
        return CACHE / digest.hexdigest()

    def look(name):
        clean = known_as(name)
        if clean.exists() or (stricter is not None and known_as(name, stricter).exists()):
            return
        result = subprocess.run(command(name), cwd=root, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, check=False)
        if result.returncode != 0:
            tell(result.stdout.strip().replace(f"{root}/", "") or result.stderr.strip() or
                 f"{name}: {tool} ended with status {result.returncode}")
        elif known_as(name) == clean:  # not what somebody has written meanwhile
            clean.touch()

    in_parallel(look, sorted(sources_of))
    return told


def needed_by(commands, root):
    """To each compiled source what it is made of. Without those that the build could not generate."""
    return {name: includes.closure_with_generated(name, include_directories(commands[name]), root)
            for name in commands if (TOP / name).is_file() or (root / name).is_file()}


def is_generated(name):
    return name.startswith("bazel-out/")


def check_tidy(files, deep=True):
    commands = compile_commands()
    root = execution_root()
    # A changed header is checked through the files that include it.
    sources_of = {name: needed | {".clang-tidy"} for name, needed in needed_by(commands, root).items()
                  if not is_generated(name) and (needed | {".clang-tidy"}) & set(files)
                  and (deep or not name.startswith("tests/"))}

    def thorough(name, without=""):
        checks = NOT_IN_TESTS if name.startswith("tests/") else without
        return ["clang-tidy-19", "--quiet", f"--config-file={TOP / '.clang-tidy'}", f"--checks={checks}", name, "--",
                *tidy_arguments(commands[name])]

    def quick(name):
        return thorough(name, without=f"-{ANALYZER}")

    return look_at_compiled(sources_of, thorough if deep else quick, root, None if deep else thorough)


def check_portable(files):
    commands = compile_commands()
    root = execution_root()
    # Generated code is looked at in any case: what it is generated from is in no list of includes.
    sources_of = {name: needed for name, needed in needed_by(commands, root).items()
                  if is_generated(name) or needed & set(files)}

    def command(name):
        return ["g++-12", *portable_arguments(commands[name]), name]

    return look_at_compiled(sources_of, command, root)


def is_shell(name):
    """Whether the file `name` is a shell script, by its name or by the interpreter that it names."""
    if name.endswith(".sh"):
        return True
    if "." in os.path.basename(name):
        return False
    with open(TOP / name, "rb") as file:
        return re.match(rb"#!.*\b(?:ba|da)?sh\b", file.readline()) is not None


def lines_of(command, files):
    """The lines that `command` prints about `files`, or that say why it could not run."""
    if not files:
        return []
    result = subprocess.run([*command, *files], cwd=TOP, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, check=False)
    lines = [line for line in result.stdout.splitlines() if line]
    if result.returncode != 0 and not lines:
        return [f"{command[0]}: exit status {result.returncode}"]
    return lines if result.returncode != 0 else []


def check_shellcheck(files):
    return lines_of(["shellcheck", "--format=gcc"], [name for name in files if is_shell(name)])


def check_pylint(files):
    # Debian's pylint belongs to Debian's Python.
    lines = lines_of(["/usr/bin/python3", "-m", "pylint", "--rcfile=.pylintrc"],
                     [name for name in files if name.endswith(".py")])
    return [line for line in lines if not line.startswith("***")]


def check_codespell(files):
    return lines_of(["codespell", "--config=.codespellrc"],
                    [name for name in files if not name.startswith(NOT_SPELT)
                     and not name.endswith(NOT_TEXT)])


def check_reuse(_):
    result = subprocess.run(["reuse", "lint"], cwd=TOP, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            check=False)
    return [line for line in result.stdout.splitlines() if line] if result.returncode != 0 else []


CHECKS = {
    "format": check_format,
    "layers": check_layers,
    "prose": check_prose,
    "errors": check_errors,
    "awaits": check_awaits,
    "rvalues": check_rvalues,
    "shellcheck": check_shellcheck,
    "pylint": check_pylint,
    "codespell": check_codespell,
    "reuse": check_reuse,
    "build": check_build,
    "tidy": check_tidy,
    "portable": check_portable,
}


def main():
    options = arguments()
    files = chosen_files(options)
    failed = 0
    for check in CHECKS:
        if check not in options.only:
            continue
        print(f"== {check}", flush=True)
        found = check_tidy(files, options.deep) if check == "tidy" else CHECKS[check](files)
        if check not in ("tidy", "portable"):  # which have printed their own
            for message in found:
                print(message)
        print(f"== {check}: {len(found) or 'nothing'} found", flush=True)
        failed += len(found)
    print(f"lint: {'clean' if not failed else f'{failed} found'}")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)

#!/usr/bin/env python3
"""Does one row of ./dev toolchains, inside a root: builds, tests, installs and uses what is installed.

Each step prints a line. outcome.json beside the row's builds has them all; with --resume, steps that passed with the
same sources are left out.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import bazel_events
import ctest_cases
import toolchain_root
import toolchain_rows

TOP = bazel_events.TOP
BUILDS = pathlib.Path("/builds")
PROTOBUF = pathlib.Path("/protobuf")
ROOT = json.loads(pathlib.Path("/", toolchain_root.STAMP).read_text("utf-8")) \
    if pathlib.Path("/", toolchain_root.STAMP).is_file() else {}
VERSION = ".".join(re.findall(r"^#define VERBENA_VERSION_(?:MAJOR|MINOR) (\d+)$",
                              (TOP / "rpc/version.h").read_text("utf-8"), re.MULTILINE))
GREETING = "Hello, storage!"
COMMAND_S = 1200
BUILD_S = 2 * 3600

# What ccache must not mind if headers are precompiled, and the flags that such compilers need for it: each
# precompiled header would differ from the last by a time.
CCACHE = {"CCACHE_SLOPPINESS": "pch_defines,time_macros,include_file_mtime,include_file_ctime", "CCACHE_MAXSIZE": "20G"}
PRECOMPILED = {"g++": "-fpch-preprocess", "clang++": "-Xclang -fno-pch-timestamp"}

# The examples of ./dev demo: the program below examples/, its arguments, and whether it needs an etcd.
DEMOS = {
    "hello": ("hello/hello", (), False),
    "balanced": ("balanced/balanced", (), False),
    "block_store": ("block_store/block_store_demo", (TOP / "examples",), False),
    "dedupe": ("dedupe/dedupe", (), False),
    "host_loop": ("host_loop/host_loop", (), False),
    "interceptors": ("interceptors/interceptors", (), False),
    "kv": ("kv/kv_demo", (), False),
    "kv --store=rocksdb": ("kv/kv_demo", ("--store=rocksdb",), False),
    "overload": ("overload/overload", (), False),
    "own_memory": ("own_memory/own_memory", (), False),
    "registered": ("registered/registered", (), True),
    "retries": ("retries/retries", (), False),
    "rolling": ("rolling/rolling", ("--short",), True),
    "rolling_restart": ("rolling_restart/rolling_restart", (), False),
    "stream": ("stream/stream_demo", ("--megabytes=16",), False),
}

# What tests/toolchains/exchange.cc is asked for, and what of a mixed row.
EXCHANGE = ("--calls=10000000", "--payload_calls=100000")
FEWER = ("--calls=1000000", "--payload_calls=10000")

# What --hello builds.
HELLO = ("verbena", "example_hello")

# The libraries of the mixed row, and the programs that are built against each.
LIBRARIES = {
    "clang-lto": ("clang++-19", True, (("g++-14", "O2"), ("g++-14", "O0"))),
    "clang": ("clang++-19", False, (("g++-14", "O2"), ("g++-14", "O0"))),
    "gcc": ("g++-14", False, (("clang++-19", "O2"),)),
}


class StepFailed(Exception):
    """Why a step failed: a text for whoever runs the row."""


# --- Commands.

class Logs:
    """A file for the output of each step, below `directory`, which is known outside of the root as `outside`."""

    def __init__(self, directory, outside):
        self._directory = directory
        self._outside = outside
        self._step = "row"
        directory.mkdir(parents=True, exist_ok=True)

    def begin(self, step):
        """What is run from now on belongs to `step`."""
        self._step = re.sub(r"\W+", "-", step)
        self.path().write_text("", encoding="utf-8")

    def path(self):
        return self._directory / f"{self._step}.log"

    def outside(self):
        return f"{self._outside}/{self.path().name}"

    def run(self, *command, environment=None, cwd=None, timeout=COMMAND_S):
        """Runs `command`, which must succeed. Returns what it printed. After `timeout` seconds it is killed, with all
        that it has started."""
        words = [str(word) for word in command]
        with open(self.path(), "a+", encoding="utf-8", errors="replace") as log:
            log.write(f"$ {' '.join(words)}\n")
            log.flush()
            begin = log.seek(0, os.SEEK_END)
            with subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=cwd,
                                  env={**os.environ, **(environment or {})}, start_new_session=True) as process:
                late = False
                try:
                    process.wait(timeout)
                except subprocess.TimeoutExpired:
                    late = True
                finally:  # also what it left running
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
            log.seek(begin)
            output = log.read()
        if late or process.returncode != 0:
            how = f"took longer than {timeout} s" if late else f"failed ({process.returncode})"
            if "No space left on device" in output:
                how += ": the disk is full; ./dev toolchains --help says what takes how much, and how to remove it"
            raise StepFailed(f"{' '.join(words)}: {how}\n{output[-3000:]}\nthe whole log: {self.outside()}")
        return output


def expect(text, part):
    if part not in text:
        raise StepFailed(f"'{part}' is not in\n{text[-3000:]}")


# --- Builds.

def compiler_of(name):
    """The program of a row's compiler."""
    return ROOT["compilers"].get(name, name)


def kind_of(compiler):
    return "clang++" if compiler.startswith("clang++") else "g++"


def has_protobuf():
    """Whether another protobuf than Debian's was given."""
    return PROTOBUF.is_dir() and any(PROTOBUF.iterdir())


def prefix_path(prefix):
    """Where CMake looks for packages: below `prefix`, if that is not None, and in another protobuf."""
    return ";".join(str(path) for path in (prefix, PROTOBUF if has_protobuf() else None) if path)


def without_cmake(prefix):
    """The environment in which pkg-config, protoc and the loader find the same."""
    packages = [str(path) for path in prefix.glob("lib*/**/pkgconfig")]
    if not has_protobuf():
        return {"PKG_CONFIG_PATH": ":".join(packages)}
    libraries = sorted({str(path.parent) for path in PROTOBUF.glob("lib*/**/pkgconfig")})
    return {"PKG_CONFIG_PATH": ":".join(packages + [f"{path}/pkgconfig" for path in libraries]),
            "PATH": f"{PROTOBUF}/bin:{os.environ['PATH']}", "LD_LIBRARY_PATH": ":".join(libraries)}


class Build:
    """How a row's compiler compiles, and where."""

    def __init__(self, directory, logs, compiler, mode, jobs=None):
        self.directory = directory
        self.logs = logs
        self.parallel = ["--parallel", str(jobs)] if jobs else []
        self.compiler = compiler_of(compiler)
        self.mode = toolchain_rows.MODES[mode]
        self.linking = toolchain_rows.LINKING.get(compiler, "")

    def options(self, more=""):
        """What a project of CMake is configured with."""
        return [*self.mode.options(more), f"-DCMAKE_EXE_LINKER_FLAGS={self.linking}",
                f"-DCMAKE_SHARED_LINKER_FLAGS={self.linking}", f"-DCMAKE_MODULE_LINKER_FLAGS={self.linking}"]

    def configure(self, source, build, *options, more="", prefix=None):
        # Afresh: what CMake found and what options said may have changed since. Objects stay.
        self.logs.run("cmake", "--fresh", "-S", source, "-B", build, "-G", "Ninja",
                      f"-DCMAKE_CXX_COMPILER={self.compiler}", "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache",
                      f"-DCMAKE_PREFIX_PATH={prefix_path(prefix)}", *self.options(more), *options)

    def build(self, build, *words, timeout=BUILD_S):
        """Builds, and returns what ccache had."""
        with tempfile.NamedTemporaryFile("r", encoding="utf-8") as statistics:
            self.logs.run("cmake", "--build", build, *self.parallel, *words, timeout=timeout,
                          environment={**CCACHE, "CCACHE_STATSLOG": statistics.name})
            return ccache_had(statistics.read())

    def library(self, build, *options, targets=()):
        """Builds what the top's CMakeLists.txt gives, or of that `targets` alone."""
        self.configure(TOP, build, *options, more=PRECOMPILED[kind_of(self.compiler)])
        return self.build(build, *(["--target", *targets] if targets else []), "--", "-k", "0")

    def consumer(self, source, name, prefix, *options):
        """A project that uses the Verbena below `prefix`. Returns its build directory."""
        build = self.directory / name
        shutil.rmtree(build, ignore_errors=True)
        self.configure(source, build, *options, prefix=prefix)
        self.build(build, timeout=COMMAND_S)
        return build


def ccache_had(log):
    """What ccache's log of a build says, in words."""
    hits = len(re.findall(r"^(?:direct|preprocessed)_cache_hit$", log, re.MULTILINE))
    misses = len(re.findall(r"^cache_miss$", log, re.MULTILINE))
    return f"ccache had {hits} of {hits + misses} objects" if hits + misses else "everything was built"


def install(logs, build, prefix):
    shutil.rmtree(prefix, ignore_errors=True)
    logs.run("cmake", "--install", build, "--prefix", prefix)


# --- Steps of a row. Each returns what its line says besides, or the outcome of cases, or raises StepFailed.

class OneCompilerRow:
    """One compiler, one mode: everything, or what a row that is only reported does."""

    def __init__(self, row, logs, jobs, hello=False):
        self.row = row
        self.jobs = jobs
        self.hello = hello
        self.directory = BUILDS / row.name
        self.cmake = self.directory / "cmake"
        self.prefix = self.directory / "prefix"
        self.logs = logs
        self.with_compiler = Build(self.directory, logs, row.compiler, row.mode, jobs)

    def steps(self):
        """(name, step, whether the rest needs it)."""
        yield "build", self.build, True
        if self.hello:
            yield "hello", lambda: expect(self.demo("hello"), GREETING), False
            return
        yield "ctest", self.ctest, False
        if self.is_whole():
            for name in DEMOS:
                yield f"demo {name}", lambda name=name: self.demo(name), False
        yield "install", self.install, True
        yield "hello by CMake", self.cmake_hello, False
        if not self.is_whole():
            return
        yield "hello by pkg-config", self.made_hello, False
        yield "new-service", self.new_service, False
        yield "exchange", self.exchange, False
        if self.row.mode == "O2":
            yield "instructions", self.instructions, False

    def is_whole(self):
        return self.row.kind == toolchain_rows.WHOLE

    def build(self):
        return self.with_compiler.library(self.cmake, "-DBUILD_SHARED_LIBS=OFF", "-DVERBENA_TESTS=ON",
                                          f"-DVERBENA_EXAMPLES={'ON' if self.is_whole() else 'OFF'}",
                                          "-DVERBENA_TOOLS=ON", targets=HELLO if self.hello else ())

    def ctest(self):
        with open(self.logs.path(), "a", encoding="utf-8") as log:
            outcome = ctest_cases.run_tests(self.cmake, jobs=self.jobs, stdout=log, stderr=subprocess.STDOUT)
        if not outcome.passed and not outcome.failures:
            outcome.failures.append("no case ran")
        return outcome

    def demo(self, name):
        program, arguments, needs_etcd = DEMOS[name]
        command = [self.cmake / "examples" / program, *arguments]
        if needs_etcd:
            command = [TOP / "tools/dev/etcd.sh", "--", *command]
        return self.logs.run(*command)

    def install(self):
        install(self.logs, self.cmake, self.prefix)
        self.logs.run(self.prefix / "bin/verbena", "--help")

    def cmake_hello(self):
        says_hello(self.with_compiler, self.prefix, "hello")

    def made_hello(self):
        build = self.directory / "made"
        shutil.rmtree(build, ignore_errors=True)
        environment = without_cmake(self.prefix)
        self.logs.run("make", "-C", TOP / "tests/cmake/consumer", f"BUILD={build}", f"{build}/hello",
                      f"CXX={self.with_compiler.compiler}", f"CXXFLAGS={self.with_compiler.mode.flags()}",
                      f"LDFLAGS={self.with_compiler.linking}", environment=environment)
        expect(self.logs.run(build / "hello", environment=environment), GREETING)

    def new_service(self):
        project = self.directory / "block_index"
        shutil.rmtree(project, ignore_errors=True)
        self.logs.run(TOP / "tools/dev/new_service.py", "block_index", "--cmake", "--dir", project)
        self.logs.run("cmake", "--preset", "default", f"-DCMAKE_PREFIX_PATH={prefix_path(self.prefix)}",
                      f"-DCMAKE_CXX_COMPILER={self.with_compiler.compiler}", *self.with_compiler.options(),
                      cwd=project)
        self.logs.run("cmake", "--build", "--preset", "default", cwd=project)
        expect(self.logs.run("ctest", "--preset", "default", cwd=project), "100% tests passed")

    def exchange(self):
        build = self.with_compiler.consumer(TOP / "tests/toolchains", "exchange", self.prefix)
        return last_lines(self.logs.run(build / "exchange", *EXCHANGE))

    def instructions(self):
        build = self.with_compiler.consumer(TOP / "benchmarks/rpc/installed", "instructions", self.prefix,
                                            "-DINSTRUCTIONS_LTO=OFF")
        figures = count_instructions(build / "rpc_instructions")
        (self.directory / "instructions.json").write_text(json.dumps(figures), encoding="utf-8")
        return compared(figures, BUILDS / toolchain_rows.REFERENCE / "instructions.json")


class MixedRow:
    """Libraries of one compiler, with programs of another."""

    def __init__(self, row, logs, jobs):
        self.directory = BUILDS / row.name
        self.logs = logs
        self.jobs = jobs

    def steps(self):
        for name, (compiler, optimised, programs) in LIBRARIES.items():
            what = f"{compiler}{' with LTO' if optimised else ''}"
            yield f"libverbena.so by {what}", lambda name=name: self.library(name), True
            for program in programs:
                of_it = f"{program[0]} {program[1]} on {what}"
                yield f"programs {of_it}", lambda name=name, program=program: self.programs(name, *program), False
                for step in (self.hello, self.border, self.exchange):
                    yield (f"{step.__name__} {of_it}",
                           lambda step=step, name=name, program=program: step(self.built(name, *program)), False)

    def prefix(self, name):
        return self.directory / f"prefix-{name}"

    def built(self, name, compiler, mode):
        return self.directory / f"programs-{name}-{compiler}-{mode}"

    def library(self, name):
        compiler, optimised, _ = LIBRARIES[name]
        build = self.directory / f"library-{name}"
        shutil.rmtree(self.prefix(name), ignore_errors=True)  # if it fails, no programs meet the one before
        said = Build(self.directory, self.logs, compiler, "O2", self.jobs).library(
            build, f"-DVERBENA_LTO={'ON' if optimised else 'OFF'}", "-DVERBENA_TOOLS=OFF")
        install(self.logs, build, self.prefix(name))
        return said

    def programs(self, name, compiler, mode):
        build = self.built(name, compiler, mode)
        Build(self.directory, self.logs, compiler, mode, self.jobs).consumer(TOP / "tests/toolchains", build.name,
                                                                            self.prefix(name))

    def hello(self, build):
        expect(self.logs.run(build / "hello"), GREETING)

    def border(self, build):
        return last_lines(self.logs.run(build / "border"), 1)

    def exchange(self, build):
        return last_lines(self.logs.run(build / "exchange", *FEWER))


def says_hello(with_compiler, prefix, name):
    build = with_compiler.consumer(TOP / "tests/cmake/consumer", name, prefix, f"-DVERSION={VERSION}",
                                   "-DCOMPONENTS=verbena")
    expect(with_compiler.logs.run(build / "hello"), GREETING)


def last_lines(output, count=2):
    """The last lines of what a program printed, as one."""
    return "; ".join(output.strip().splitlines()[-count:])


# --- Instructions.

def count_instructions(program):
    """Instructions of a call, by point, as ./dev bench --only rpc_instructions counts them."""
    sys.path.append(str(TOP / "benchmarks/rpc"))
    import instructions  # pylint: disable=import-error  # it lies in another folder
    options = argparse.Namespace(calls=4000, device=None)
    figures = {}
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        binary = instructions.stripped(program, directory, "program")
        for kind, outstanding in instructions.POINTS:
            for side in instructions.SIDES:
                key = instructions.key_of(side, kind, outstanding)
                try:
                    figures[key] = round(instructions.count(binary, side, kind, outstanding, options, directory)[0])
                except SystemExit as failed:
                    raise StepFailed(str(failed)) from failed
    return figures


def compared(figures, reference):
    """`figures` in words, with ratios to those of the file `reference`."""
    try:
        others = json.loads(reference.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        others = {}
    words = [f"{key} {value}" + (f" ({value / others[key]:.2f})" if others.get(key) else "")
             for key, value in figures.items()]
    return (f"a call takes {', '.join(words)}" +
            ("" if others else f"; no figure of {toolchain_rows.REFERENCE} yet to compare with"))


# --- The row.

class Record:
    """What became of each step, in a file, for the command outside and for the next run."""

    def __init__(self, path, sources, resume):
        self._path = path
        self._content = {"sources": sources, "steps": []}
        self._before = {}
        if resume and sources:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                before = json.loads(path.read_text(encoding="utf-8"))
                if before["sources"] == sources:
                    self._before = {step["name"]: step for step in before["steps"] if not step["failures"]}

    def passed_before(self, name):
        return self._before.get(name)

    def add(self, step):
        # Those that are still to come keep what is known of them: this run may be interrupted.
        self._before.pop(step["name"], None)
        self._content["steps"].append(step)
        aside = self._path.with_suffix(".new")
        rest = [{**each, "before": True} for each in self._before.values()]
        aside.write_text(json.dumps({**self._content, "steps": self._content["steps"] + rest}), encoding="utf-8")
        aside.replace(self._path)


def do_step(name, step):
    """Runs a step. Returns its record."""
    start = time.monotonic()
    record = {"name": name, "passed": 0, "failures": [], "skips": [], "said": ""}
    try:
        result = step()
        if isinstance(result, bazel_events.Outcome):
            record.update(passed=result.passed, failures=result.failures, skips=result.skips)
            record["said"] = f"{result.passed} cases passed, {len(result.failures)} failed"
        else:
            record.update(passed=1, said=result or "")
    except StepFailed as failed:
        record["failures"] = [str(failed).splitlines()[0]]
        record["said"] = str(failed)
    record["seconds"] = round(time.monotonic() - start)
    return record


def show(row, record, note=""):
    """Prints the line of a step, and its cases that failed."""
    failed = bool(record["failures"])
    several = "\n" in record["said"]
    said = f"  {record['said']}" if record["said"] and not several else ""
    print(f"{'FAILED' if failed else 'passed'}  {row}  {record['name']}  {record['seconds']} s{note}{said}", flush=True)
    for line in [record["said"]] if several else record["failures"]:
        print(f"        {line}", flush=True)


def steps_of(row, logs, options):
    if row.kind == toolchain_rows.MIXED:
        return MixedRow(row, logs, options.jobs).steps()
    return OneCompilerRow(row, logs, options.jobs, options.hello).steps()


def run(row, logs, record, options):
    """Does the steps of a row. Returns whether all passed."""
    passed = True
    for name, step, is_needed in steps_of(row, logs, options):
        before = record.passed_before(name)
        if before:
            record.add(before)
            show(row.name, before, " (before, with the same files)")
            continue
        logs.begin(name)
        done = do_step(name, step)
        record.add(done)
        show(row.name, done)
        passed = passed and not done["failures"]
        if done["failures"] and is_needed and row.kind != toolchain_rows.MIXED:
            print(f"        the rest of {row.name} needs that: it is left out", flush=True)
            return False
    return passed


def main():
    parser = argparse.ArgumentParser(prog="toolchain_row.py", description=__doc__.splitlines()[0])
    parser.add_argument("row", choices=[row.name for row in toolchain_rows.ROWS])
    parser.add_argument("--sources", default="", help="names the files that the row is of")
    parser.add_argument("--outside", default=str(BUILDS), help="where /builds is outside of the root")
    parser.add_argument("--resume", action="store_true", help="leave out steps that passed with the same sources")
    parser.add_argument("--hello", action="store_true", help="only build the library and hello, and run that")
    parser.add_argument("--jobs", type=int)
    options = parser.parse_args()
    row = toolchain_rows.by_name(options.row)
    directory = BUILDS / row.name
    logs = Logs(directory / "logs", f"{options.outside}/{row.name}/logs")
    record = Record(directory / ("hello.json" if options.hello else "outcome.json"), options.sources, options.resume)
    return 0 if run(row, logs, record, options) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)

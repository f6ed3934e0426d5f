"""Runs the rows of soft_programs.ROWS: two processes each, with a time limit, ended by their ids."""

import dataclasses
import os
import pathlib
import pty
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time

PASSED, FAILED, NOT_INSTALLED = "passed", "failed", "not installed"
SERVER_START_SECONDS = 10
SERVER_END_SECONDS = 10
LOOK_SECONDS = 0.02
LISTENING = "0A"  # the state in /proc/net/tcp


@dataclasses.dataclass
class Result:
    program: str
    arguments: str
    outcome: str
    reason: str = ""
    figure: str = ""
    figure_name: str = ""
    output: str = ""


def environment(library, more=()):
    """The environment in which a program sees the soft devices of `library`."""
    settings = dict(os.environ)
    settings.setdefault("VERBENA_SOFT_DEVICES", "2")
    before = settings.get("LD_PRELOAD")
    settings["LD_PRELOAD"] = f"{library}:{before}" if before else str(library)
    settings.update(more)
    return settings


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _listens(port):
    """Whether a socket of this host listens on `port`. Connecting would take the server's only client."""
    wanted = f"{port:04X}"
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = pathlib.Path(table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            columns = line.split()
            if columns[1].endswith(":" + wanted) and columns[3] == LISTENING:
                return True
    return False


class _Process:
    """One program, with its output in a file, so that it never waits for a reader."""

    def __init__(self, command, settings):
        self._file = tempfile.TemporaryFile()
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._file,
                                         stderr=subprocess.STDOUT, env=settings)

    def status(self):
        """The exit status, or None while the process runs."""
        return self._process.poll()

    def wait(self, seconds):
        """True if it ended within `seconds`."""
        try:
            self._process.wait(max(seconds, 0))
            return True
        except subprocess.TimeoutExpired:
            return False

    def end(self):
        """Ends it if it still runs: by SIGTERM, then by SIGKILL."""
        for end in (self._process.terminate, self._process.kill):
            if self.status() is not None:
                break
            end()
            if self.wait(2):
                break

    def output(self):
        self._file.seek(0)
        return self._file.read().decode(errors="replace")


def _how_it_ended(status):
    if status >= 0:
        return f"status {status}"
    return f"signal {signal.Signals(-status).name}"


def last_words(output):
    """The last line that says something, cut to fit a table."""
    lines = [line.strip() for line in output.splitlines() if line.strip(" -\t#=*")]
    return (lines[-1] if lines else "no output").replace("|", "/")[:100]


def _command(program, arguments, port, device):
    return [program, *(each.format(port=port, device=device) for each in arguments)]


def _run_until(row, settings):
    """A program that never ends: waits for its text, on a terminal, so that it does not keep it back."""
    master, slave = pty.openpty()
    command = _command(row.program, row.server, 0, "soft0")
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=slave, stderr=slave, env=settings)
    os.close(slave)
    text = ""
    deadline = time.monotonic() + row.seconds
    try:
        while row.until not in text:
            ready, _, _ = select.select([master], [], [], max(deadline - time.monotonic(), 0))
            if not ready:
                return f"did not print '{row.until}' in {row.seconds:g} s", text
            try:
                text += os.read(master, 4096).decode(errors="replace")
            except OSError:  # it ended, and the terminal with it
                return f"ended early: {last_words(text)}", text
        if process.poll() is not None:
            return f"ended early: {_how_it_ended(process.returncode)}", text
        return "", text
    finally:
        process.terminate()
        try:
            process.wait(2)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(master)


def _wait_for_server(server, port):
    """Waits until the server listens, or ends. Returns what went wrong."""
    deadline = time.monotonic() + SERVER_START_SECONDS
    while not _listens(port):
        if server.status() is not None:
            return f"server: {_how_it_ended(server.status())}: {last_words(server.output())}"
        if time.monotonic() > deadline:
            return f"server: does not listen after {SERVER_START_SECONDS} s"
        time.sleep(LOOK_SECONDS)
    return ""


def _run_pair(row, settings):
    """Runs server and client. Returns (what went wrong, the client's output, both outputs)."""
    names = row.program.split(", ")
    port = _free_port()
    server = _Process(_command(names[0], row.server, port, "soft0"), settings)
    client = None
    try:
        problem = _wait_for_server(server, port)
        if not problem:
            client = _Process(_command(names[-1], row.client, port, "soft1"), settings)
            if not client.wait(row.seconds):
                problem = f"client: still runs after {row.seconds:g} s"
            elif client.status() != 0:
                problem = f"client: {_how_it_ended(client.status())}: {last_words(client.output())}"
            elif row.server_stays:
                if server.status() is not None:
                    problem = f"server: ended early: {_how_it_ended(server.status())}"
            elif not server.wait(SERVER_END_SECONDS):
                problem = f"server: still runs {SERVER_END_SECONDS} s after the client's end"
            elif server.status() != 0:
                problem = f"server: {_how_it_ended(server.status())}: {last_words(server.output())}"
    finally:
        for process in (client, server):
            if process is not None:
                process.end()
    text = client.output() if client else ""
    return problem, text, f"server:\n{server.output()}\nclient:\n{text}"


def _run_alone(row, settings):
    process = _Process(_command(row.program, row.server, 0, "soft0"), settings)
    problem = ""
    try:
        if not process.wait(row.seconds):
            problem = f"still runs after {row.seconds:g} s"
        elif process.status() != 0:
            problem = f"{_how_it_ended(process.status())}: {last_words(process.output())}"
    finally:
        process.end()
    return problem, process.output()


def run(row, library):
    """Runs one row."""
    result = Result(row.program, row.arguments, PASSED, figure_name=row.figure_name)
    if not all(shutil.which(name) for name in row.program.split(", ")):
        result.outcome = NOT_INSTALLED
        return result
    settings = environment(library, row.environment)
    if row.until:
        result.reason, text = _run_until(row, settings)
        result.output = text
    elif row.client is None:
        result.reason, text = _run_alone(row, settings)
        result.output = text
    else:
        result.reason, text, result.output = _run_pair(row, settings)
    if not result.reason and row.expects not in text:
        result.reason = f"'{row.expects}' is not in the output: {last_words(text)}"
    if result.reason:
        result.outcome = FAILED
    elif row.figure:
        result.figure = row.figure(text)
    return result

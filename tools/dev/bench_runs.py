"""Runs benchmarks of two commits alternately, each built in a git worktree of its own."""

import os
import pathlib
import subprocess
import tempfile

import bazel_events
import bench_compare


def cache_directory():
    """The directory that keeps the worktrees of commits: they build fast the next time."""
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "verbena-compare"


def git(*words):
    done = subprocess.run(["git", *words], cwd=bazel_events.TOP, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, check=False)
    if done.returncode != 0:
        raise bench_compare.CompareError(done.stderr.strip() or f"git {words[0]} failed")
    return done.stdout.strip()


def worktree_of(name):
    """The directory of a checkout of commit `name`; this tree, with its uncommitted changes, for '.'."""
    if name == ".":
        return pathlib.Path(bazel_events.TOP)
    try:
        commit = git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    except bench_compare.CompareError as error:
        raise bench_compare.CompareError(
            f"'{name}' is no commit; --compare takes two files of JSON lines, or two commits") from error
    directory = cache_directory() / commit
    if not (directory / "WORKSPACE").exists():
        directory.parent.mkdir(parents=True, exist_ok=True)
        git("worktree", "prune")
        git("worktree", "add", "--detach", "--force", str(directory), commit)
    return directory


def build(directory, targets):
    """Builds `targets` there, optimised. Returns their programs by target."""
    print(f"building {directory}", flush=True)
    command = [str(directory / "tools/dev/bazel.sh"), "build", "--config=opt", *targets]
    if subprocess.run(command, cwd=directory, check=False).returncode != 0:
        raise bench_compare.CompareError(f"{directory} does not build")
    binaries = pathlib.Path(os.path.realpath(directory / ".bazel/bin"))
    return {target: str(binaries.joinpath(*target[2:].split(":"))) for target in targets}


def run(program, words):
    """The JSON lines of one run."""
    with tempfile.NamedTemporaryFile("r", suffix=".json") as rows:
        done = subprocess.run([program, *words, "--json", rows.name], stdout=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            raise bench_compare.CompareError(f"{program} failed with status {done.returncode}")
        return rows.read().splitlines()


def alternate(programs, words, rounds, run=run):
    """The lines of `rounds` runs of OLD's and of NEW's programs. Every other round begins with NEW."""
    lines = ([], [])
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", flush=True)
        for side in ((0, 1), (1, 0))[number % 2]:
            for program in programs[side]:
                lines[side].extend(run(program, words))
    return lines


def compare(old, new, targets, words, rounds):
    """Prints what changed from `old` to `new`, two files or two commits. Returns the exit status."""
    try:
        if os.path.isfile(old) and os.path.isfile(new):
            lines = [pathlib.Path(name).read_text(encoding="utf-8").splitlines() for name in (old, new)]
        else:
            built = [build(worktree_of(name), targets) for name in (old, new)]
            lines = alternate([list(programs.values()) for programs in built], words, rounds)
        changes = bench_compare.compare(*(bench_compare.read_rows(side, name)
                                          for side, name in zip(lines, (old, new))))
    except bench_compare.CompareError as error:
        print(f"bench: {error}")
        return 2
    print("\n".join(bench_compare.report(changes)))
    return bench_compare.exit_status(changes)

#!/usr/bin/env python3
"""Builds Verbena's Debian packages, and tests them in a Debian system that has nothing else."""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import bazel_events
import debian_archive
import lock
import mutant_tree

TOP = bazel_events.TOP
PACKAGING = "tools/packaging"
PACKAGES = ("libverbena1", "libverbena-dev", "verbena-tools", "libverbena-soft")
# Below the output. One name, because ccache hashes paths.
WORK = ".verbena-deb-work"
# What the README's program is built with in the test, besides what the packages bring.
BUILT_WITH = ("clang-19", "cmake", "ibverbs-utils", "ninja-build", "pkg-config")


def arguments():
    parser = argparse.ArgumentParser(
        prog="./dev deb", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Builds Debian packages of this tree, with what is not committed, and runs lintian on them:\n"
                    "  libverbena1      the shared libraries, which programs load\n"
                    "  libverbena-dev   headers, protoc-gen-verbena, files for CMake and pkg-config, documents\n"
                    "  verbena-tools    the command verbena\n"
                    "  libverbena-soft  libverbena_soft.so, to be preloaded into programs of others",
        epilog="Their version is that of rpc/version.h. For example, install them by:\n"
               "  apt install ./build/deb/libverbena1_*.deb ./build/deb/libverbena-dev_*.deb\n"
               "Packages of symbols for debuggers (-dbgsym) lie beside them.")
    parser.add_argument("--output", metavar="DIR", type=pathlib.Path, default=TOP / "build/deb",
                        help="where to put the packages (default build/deb)")
    parser.add_argument("--test", action="store_true",
                        help="then install them in a fresh Debian 12, build and run the README's program there by "
                             "CMake and by pkg-config, purge them, and look for what they left")
    parser.add_argument("--no-build", action="store_true",
                        help="with --test: test the packages that DIR has")
    options = parser.parse_args()
    if options.no_build and not options.test:
        parser.error("--no-build goes with --test")
    return options


def version(header):
    """The version in the text of rpc/version.h."""
    return ".".join(re.findall(r"^#define VERBENA_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$", header, re.MULTILINE))


def git(*words):
    """What git says, or "" outside of a clone."""
    done = subprocess.run(["git", *words], cwd=TOP, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                          check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def changelog(number, commit, date, maintainer):
    """The text of debian/changelog. Its date is the commit's, so that a second build gives the same bytes."""
    return (f"verbena ({number}) {debian_archive.DEBIAN}; urgency=medium\n\n"
            f"  * Verbena {number}, commit {commit}. CHANGELOG.md says what changed.\n\n"
            f" -- {maintainer}  {date}\n")


def write_sources(tree):
    """Writes into the folder `tree` what dpkg-buildpackage builds: the sources, with debian/ on top."""
    for name in mutant_tree.files(TOP):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(TOP / name, tree / name)
    shutil.copytree(tree / PACKAGING / "debian", tree / "debian", ignore=shutil.ignore_patterns("README.md"))
    maintainer = re.search(r"^Maintainer: (.*)$", (tree / "debian/control").read_text(), re.MULTILINE)[1]
    text = changelog(version((tree / "rpc/version.h").read_text()), git("rev-parse", "--short=12", "HEAD"),
                     git("log", "-1", "--format=%cD"), maintainer)
    (tree / "debian/changelog").write_text(text)


def run(command, what, **more):
    """Runs a command, or ends the program and says that `what` failed."""
    try:
        status = subprocess.run([str(word) for word in command], check=False, **more).returncode
    except FileNotFoundError:
        sys.exit(f"dev deb: there is no {command[0]}: this needs Debian 12, and ./dev install-deps --deb")
    if status != 0:
        sys.exit(f"dev deb: {what} failed: see above")


def build(output):
    """Leaves the packages in `output`. Nobody else may build there at the same time."""
    try:
        with lock.locked(output / WORK):
            build_in(output / WORK, output)
    except lock.Held as held:
        sys.exit(f"dev deb: {held}")


def build_in(work, output):
    """Builds in the folder `work`, and moves the packages to `output`."""
    shutil.rmtree(work, ignore_errors=True)
    tree = work / "verbena"
    write_sources(tree)
    # debhelper gives the build a home of its own, where ccache would find nothing.
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    environment = {"CCACHE_DIR": os.path.join(home, "ccache"), **os.environ}
    run(["dpkg-buildpackage", "-us", "-uc", "-b", "-Jauto"], "dpkg-buildpackage", cwd=tree, env=environment)
    run(["lintian", "--allow-root", "--fail-on", "error", *work.glob("*.changes")], "lintian")
    for old in ours(output):
        old.unlink()
    for made in [*work.glob("*.deb"), *work.glob("*.changes"), *work.glob("*.buildinfo")]:
        made.replace(output / made.name)
    shutil.rmtree(work)


def ours(output):
    """The packages that an earlier run left in `output`, with those of symbols. Other files are the user's."""
    return [path for name in PACKAGES for ending in ("", "-dbgsym") for path in output.glob(f"{name}{ending}_*.deb")]


def packages(output):
    """The packages in `output`, without those of symbols."""
    found = [path for name in PACKAGES for path in output.glob(f"{name}_*.deb")]
    if len(found) != len(PACKAGES):
        sys.exit(f"dev deb: {output} must have one package of each: {', '.join(PACKAGES)}")
    return found


def test(output):
    """Installs the packages in a Debian of its own, which is gone afterwards, and uses them there."""
    with tempfile.TemporaryDirectory(prefix="verbena-deb-") as directory:
        given = pathlib.Path(directory) / "verbena-packages"
        (given / "hello/examples").mkdir(parents=True)
        for path in packages(output):
            shutil.copy2(path, given)
        shutil.copytree(TOP / "examples/hello", given / "hello/examples/hello")
        shutil.copy2(TOP / PACKAGING / "test/CMakeLists.txt", given / "hello")
        shutil.copy2(TOP / PACKAGING / "test/in_chroot.sh", given)
        settings = pathlib.Path(directory) / "apt.conf"
        settings.write_text(debian_archive.settings())
        pathlib.Path(directory).chmod(0o755)  # without root, mmdebstrap is another user
        # apt runs outside, as this machine's does, and dpkg inside.
        install = ('APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-get install -q -y -o DPkg::Chroot-Directory="$1" '
                   f'"$1"/{given.name}/*.deb ' + " ".join(BUILT_WITH))
        # Nobody misses this Debian after a crash: syncing each file takes most of the time.
        run(["mmdebstrap", "--quiet", "--variant=minbase", f"--aptopt={settings}", "--dpkgopt=force-unsafe-io",
             f"--customize-hook=copy-in {given} /", f"--customize-hook={install}",
             f'--customize-hook=chroot "$1" /{given.name}/in_chroot.sh', debian_archive.DEBIAN, "/dev/null", "-"],
            "the test of the packages", input="\n".join(debian_archive.sources()) + "\n", text=True)


def main():
    options = arguments()
    output = options.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    if not options.no_build:
        build(output)
        print("\n".join(str(path) for path in packages(output)))
    if options.test:
        test(output)
        print("The packages were installed, used and purged.")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except debian_archive.Failed as failed:
        sys.exit(f"dev deb: {failed}")

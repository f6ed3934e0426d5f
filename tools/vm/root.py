"""A Debian of its own in a directory, for what this machine's compilers cannot build."""

import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile

# Before the modules of tools/dev, to which it opens the way.
from archive import Unavailable, rename_unless_there, source
import debian_archive
import lock

# What the root has besides Debian's minimum: what builds modules of Debian 13's kernel.
PACKAGES = ("gcc-14", "libelf1t64", "make")
# Runs in a mount namespace, with which the mounts end: $1 is the root, $2 the directory that it
# sees as /mnt, and the rest the command.
ENTER = ('root=$1; directory=$2; shift 2; mount --rbind /proc "$root/proc" && '
         'mount --rbind /dev "$root/dev" && mount --bind "$directory" "$root/mnt" && '
         'exec chroot "$root" "$@"')
SEEN_AS = "/mnt"


def trixie_root(cache):
    """The directory of a Debian 13 with PACKAGES, made now if it is not in `cache`."""
    root = cache / f"root-{hashlib.sha256(' '.join(PACKAGES).encode()).hexdigest()[:8]}"
    with lock.locked(root, wait=True):
        if not root.exists():
            _make(root, "trixie")
    return root


def run_in(root, directory, command):
    """Runs `command` in the root, which sees `directory` as SEEN_AS. Returns what subprocess.run
    does, with all output in `stdout`. Any user may, if the kernel lets users have namespaces."""
    return subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", ENTER, "sh", root, directory,
         *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


def _make(root, suite):
    print(f"vm: making a root of {suite} in {root} (once; 320 MB)", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=root.parent, prefix="making-") as temporary:
        top = pathlib.Path(temporary)
        settings = top / "apt.conf"
        settings.write_text(debian_archive.settings())
        # By way of an archive: without root, mmdebstrap's files would belong to others.
        archive = top / "root.tar"
        _run(["mmdebstrap", "--quiet", "--variant=minbase", f"--aptopt={settings}",
              "--dpkgopt=force-unsafe-io", f"--include={','.join(PACKAGES)}", suite, archive,
              source(suite)])
        made = top / "root"
        made.mkdir()
        _run(["tar", "-xf", archive, "-C", made, "--exclude=./dev/*"])
        rename_unless_there(made, root)


def _run(command):
    try:
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                check=False)
    except FileNotFoundError:
        raise Unavailable(f"there is no {command[0]}: run ./dev install-deps --vm") from None
    if result.returncode != 0:
        who = "" if os.getuid() == 0 else (
            "\nRun it as root, or as a user who has ranges in /etc/subuid and /etc/subgid.")
        raise Unavailable(f"{command[0]} fails, which makes a root of Debian 13:\n"
                          f"{result.stdout.strip()}{who}")

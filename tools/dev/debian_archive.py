"""How this machine's apt reaches Debian's archive, for systems of Debian beside it."""

import re
import subprocess

DEBIAN = "bookworm"
# The options by which this machine's apt reaches its archives.
REACHES = re.compile(r"Acquire::(?:https?|Check-\S+|Retries)(?:::| )")


class Failed(Exception):
    """apt knows no archive of Debian."""


def output_of(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def sources():
    """This machine's sources of Debian 12, as lines of a sources.list."""
    listing = output_of("apt-get", "indextargets", "--format",
                        "$(ORIGIN)\t$(CODENAME)\tdeb $(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages")
    lines = [line.split("\t") for line in listing.splitlines()]
    found = [line[2] for line in lines if line[0] == "Debian" and line[1].split("-")[0] == DEBIAN]
    if not found:
        raise Failed(f"apt has no package lists of Debian 12 ({DEBIAN}): run apt-get update")
    return list(dict.fromkeys(found))


def uri(lines):
    """Where Debian's suites are, by the lines of sources()."""
    for line in lines:
        _, found, suite, *_ = line.split()
        if suite == DEBIAN:
            return found
    raise Failed(f"none of apt's sources is the suite {DEBIAN} itself")


def settings():
    """How this machine's apt reaches its archives, as text of an apt.conf."""
    return "".join(line for line in output_of("apt-config", "dump").splitlines(keepends=True) if REACHES.match(line))

#!/usr/bin/env python3
"""./dev vm: runs a command on real verbs, in a guest whose kernel has an RDMA device."""

import argparse
import os
import pathlib
import shlex
import shutil
import socket
import sys

import archive
import disk
import guest
import kernel as kernels
import siw

FORWARDED = ("HOME", "LANG", "LD_LIBRARY_PATH", "PATH", "USER")
FORWARDED_PREFIXES = ("VERBENA_", "GTEST_", "ASAN_", "UBSAN_", "TSAN_")
DESCRIPTION = """\
Boots Debian's kernel in QEMU, on this host's own root (read-only; changes are kept in memory, and
lost), brings up RDMA devices made of software, and runs COMMAND there. Its output, standard error
and exit status come back apart. A COMMAND of one word is given to the shell."""
EPILOG = """\
rxe0 is on eth0, at 10.0.0.1. With --devices 2 rxe1 is on eth1, at 10.0.0.2: the ends of a veth pair,
which real packets cross. With --hosts 2 the second guest's eth0 has 10.0.0.2, COMMAND starts once
that answers, and the run ends when COMMAND ends; the peer's output comes on standard error.
With --disk a disk with ext4 is mounted at /disk. Killing ./dev vm is a power cut: the guest's page
cache is lost, and --disk-image FILE keeps what had reached the disk.
Kernels are downloaded once, into ~/.cache/verbena-vm. Soft-iWARP for trixie is built by that Debian's
compiler, in a root of 320 MB there. Remove ~/.cache/verbena-vm/trixie for a newer kernel of trixie.
VERBENA_*, GTEST_* and the sanitizers' variables are passed on.

exit status: that of COMMAND; 2 wrong usage; 69 what is needed is missing (./dev install-deps --vm);
124 out of time; 125 the guest died.

examples:
  ./dev vm -- ibv_devinfo
  ./dev vm --kernel trixie --device siw -- ibv_devinfo
  ./dev vm --devices 2 --loss 1 -- \\
    'ib_write_bw -d rxe0 -x 1 & sleep 1; ib_write_bw -d rxe1 -x 1 10.0.0.1'
  ./dev vm --disk 128 --device none -- df -h /disk
  ./dev vm --hosts 2 --peer 'ibv_rc_pingpong -g 1' -- 'sleep 1; ibv_rc_pingpong -g 1 10.0.0.2'"""


def arguments(argv):
    parser = argparse.ArgumentParser(
        prog="./dev vm", formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="./dev vm [options] -- COMMAND [argument...]",
        description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("--device", choices=("rxe", "siw", "none"), default="rxe",
                        help="Soft-RoCE (default), Soft-iWARP (built on first use), or no device")
    parser.add_argument("--kernel", choices=archive.SUITES, default=archive.SUITES[0],
                        help="the Debian whose kernel boots: bookworm with Linux 6.1 (default), or "
                             "trixie with 6.12")
    parser.add_argument("--devices", type=int, choices=(1, 2), default=1, help="in the guest")
    parser.add_argument("--hosts", type=int, choices=(1, 2), default=1, help="guests")
    parser.add_argument("--peer", metavar="COMMAND", help="what the second guest runs")
    parser.add_argument("--loss", type=_percent, metavar="PERCENT", default=0.0,
                        help="of the packets, in each direction; on two devices or hosts")
    parser.add_argument("--delay", type=_milliseconds, metavar="MS", default=0.0,
                        help="of the packets, in each direction; on two devices or hosts")
    parser.add_argument("--timeout", type=_positive, metavar="SECONDS", default=600,
                        help="for boot and COMMAND (default 600)")
    parser.add_argument("--memory", type=_positive, metavar="MB", default=2048,
                        help="of each guest (default 2048)")
    parser.add_argument("--cpus", type=_positive, metavar="N", default=2,
                        help="of each guest (default 2)")
    parser.add_argument("--env", metavar="NAME", action="append", default=[],
                        help="pass on this variable, too; may be repeated")
    parser.add_argument("--disk", type=_positive, nargs="?", const=disk.DEFAULT_MB, metavar="MB",
                        help=f"a disk with ext4, at /disk (default {disk.DEFAULT_MB} MB)")
    parser.add_argument("--disk-image", type=pathlib.Path, metavar="FILE",
                        help="keep that disk in FILE, which is made if it is not there")
    parser.add_argument("--raw-disk", type=_positive, metavar="MB", action="append", default=[],
                        help="a disk without a file system: /dev/vdb, or /dev/vda without --disk; "
                             "may be repeated")
    parser.add_argument("--writable", metavar="DIRECTORY", type=_directory,
                        help="of this host, that the guest may write")
    parser.add_argument("--kvm", action="store_true",
                        help="use /dev/kvm instead of emulation: faster where it works")
    parser.add_argument("--pin", action="store_true",
                        help="give each processor a core of the host: for benchmarks")
    parser.add_argument("--console", action="store_true", help="show the console at the end")
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.command[:1] == ["--"]:
        del options.command[0]
    if not options.command:
        parser.error("no COMMAND is given")
    if options.devices == 2 and options.hosts == 2:
        parser.error("--devices 2 and --hosts 2 exclude each other")
    if options.hosts == 2 and (options.disk or options.disk_image or options.raw_disk):
        parser.error("disks are for one host: leave out --hosts 2")
    if options.disk_image:
        options.disk_image = options.disk_image.resolve()
    if options.peer is not None and options.hosts != 2:
        parser.error("--peer needs --hosts 2")
    if (options.loss or options.delay) and options.devices == 1 and options.hosts == 1:
        parser.error("no packet leaves one device: --loss and --delay need --devices 2 or --hosts 2")
    return options


def _number(text, low, high, kind=float):
    try:
        value = kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number") from None
    if not low <= value <= high:
        raise argparse.ArgumentTypeError(f"{text} is not in [{low}, {high}]")
    return value


def _percent(text):
    return _number(text, 0, 100)


def _milliseconds(text):
    return _number(text, 0, 60000)


def _positive(text):
    return _number(text, 1, 1 << 20, int)


def _directory(text):
    if not os.path.isdir(text):
        raise argparse.ArgumentTypeError(f"there is no directory '{text}'")
    return pathlib.Path(text).resolve()


def missing_packages():
    """The Debian packages that a guest needs and this host lacks."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    return [package for program, package in guest.PROGRAMS.items()
            if not shutil.which(program, path=path)]


def environment(names, values):
    """The command's environment, from the variables in `values`. The command runs as root."""
    passed = {name: value for name, value in values.items()
              if name in FORWARDED or name in names or name.startswith(FORWARDED_PREFIXES)}
    passed["PATH"] = f"{values.get('PATH', '/usr/bin')}:/usr/sbin"
    return passed


def shell_command(words):
    return words[0] if len(words) == 1 else shlex.join(words)


def settings_of(options, host):
    return {"device": options.device, "devices": options.devices, "hosts": options.hosts,
            "host": host, "loss": f"{options.loss:g}", "delay": f"{options.delay:g}",
            "disk": "/disk" if options.disk or options.disk_image else ""}


def run(options):
    options.environment = environment(options.env, os.environ)
    options.kernel = kernels.get(options.kernel)
    modules = [siw.module(options.kernel)] if options.device == "siw" else []
    cables = socket.socketpair() if options.hosts == 2 else (None, None)
    guests = []
    try:
        if options.hosts == 2:
            guests.append(guest.Guest(options, settings_of(options, 2), options.peer or "sleep inf",
                                      sys.stderr.buffer, sys.stderr.buffer, cables[1], modules))
        guests.append(guest.Guest(options, settings_of(options, 1), shell_command(options.command),
                                  sys.stdout.buffer, sys.stderr.buffer, cables[0], modules))
        status = guests[-1].wait(options.timeout)
    finally:
        for each in guests:
            each.stop()
    report(options, guests[-1], status)
    return status


def report(options, first, status):
    """Says why there is no exit status, and what the guest's kernel complained of."""
    def say(line):
        print(f"vm: {line}", file=sys.stderr)

    if status == guest.TIMED_OUT and first.timed_out:
        say(f"not done after {options.timeout} s")
    if options.console or status == guest.DIED:
        for line in first.console()[-200 if options.console else -40:]:
            say(f"console: {line}")
    if status == guest.DIED:
        say("the guest ended without an exit status")
    for line in first.complaints():
        say(f"guest kernel: {line}")


def main():
    options = arguments(sys.argv[1:])
    missing = missing_packages()
    if missing:
        print(f"vm: cannot run a guest: {', '.join(missing)} not installed; "
              "run ./dev install-deps --vm", file=sys.stderr)
        return 69
    try:
        return run(options)
    except archive.Unavailable as reason:
        print(f"vm: cannot run a guest: {reason}", file=sys.stderr)
        return 69


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)

"""One guest: a QEMU process that runs one command on the host's own root, and how it ended."""

import os
import pathlib
import re
import shlex
import subprocess
import tempfile
import threading
import time

import disk
import kernel as kernels

HERE = pathlib.Path(__file__).resolve().parent
TIMED_OUT = 124  # as timeout(1) has it
DIED = 125
PROGRAMS = {"qemu-system-x86_64": "qemu-system-x86", "busybox": "busybox-static",
            "rdma": "iproute2", "depmod": "kmod", "setpriv": "util-linux",
            "mkfs.ext4": "e2fsprogs", "zstd": "zstd"}
BOOT_ARGUMENTS = ("console=ttyS0 quiet loglevel=5 panic=-1 nokaslr mitigations=off nohz=off "
                  "tsc=reliable random.trust_cpu=on")
COMPLAINTS = re.compile(r"WARNING:|BUG:|Oops|general protection|blocked for more|soft lockup|stall")


class Guest:
    """Started by the constructor. wait() or stop() ends it; both may be called again.

    settings: the words of network.sh and init. `out` and `err` are binary files that get the
    command's output as it comes. `cable` is a connected socket: the wire to the other guest.
    """

    def __init__(self, options, settings, command, out, err, cable=None, extra_modules=()):
        self.directory = tempfile.TemporaryDirectory(prefix="verbena-vm-")
        self.run = pathlib.Path(self.directory.name)
        self.kernel = options.kernel
        self.host = settings["host"]
        self.timed_out = False
        self._write_command(options, settings, command)
        self.disks = disk.images(options, self.run)
        kernels.write_initrd(self.run / "initrd", self.kernel, HERE / "init", extra_modules,
                             bool(self.disks))
        self.relays = []
        ends = [self._relay(out), self._relay(err)]
        passed = ends + ([cable.fileno()] if cable else [])
        self.log = open(self.run / "qemu.log", "wb")
        self.process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *self._qemu(options, ends, cable)],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT, pass_fds=passed)
        for end in ends:
            os.close(end)
        if options.pin:
            self._pin(options.cpus)

    def wait(self, timeout_s):
        """The exit status of the command, TIMED_OUT, or DIED: then console() may tell the reason."""
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.stop()
            self.timed_out = True
            return TIMED_OUT
        self._drain()
        path = self.run / "status"
        text = path.read_text().strip() if path.exists() else ""
        return int(text) if text.isdigit() else DIED

    def stop(self):
        self.process.kill()
        self.process.wait()
        self._drain()

    def complaints(self):
        """Warnings of the guest's kernel, a line each."""
        return [line for line in self.console() if COMPLAINTS.search(line)]

    def console(self):
        lines = []
        for name in ("console.log", "qemu.log"):
            path = self.run / name
            if path.exists():
                lines += path.read_text(errors="replace").splitlines()
        return lines

    def _write_command(self, options, settings, command):
        words = dict(settings, tools=HERE, writable=options.writable or "")
        (self.run / "settings.sh").write_text(
            "".join(f"{name}={shlex.quote(str(value))}\n" for name, value in words.items()))
        lines = [f"export {name}={shlex.quote(value)}"
                 for name, value in options.environment.items()]
        lines.append(f"cd {shlex.quote(os.getcwd())}")
        (self.run / "command.sh").write_text("\n".join([*lines, command]) + "\n")

    def _relay(self, to):
        """The end of a pipe, whose other end is copied to the file `to` by a thread."""
        source, end = os.pipe()

        def copy():
            while data := os.read(source, 1 << 16):
                to.write(data)
                to.flush()
            os.close(source)

        self.relays.append(threading.Thread(target=copy, daemon=True))
        self.relays[-1].start()
        return end

    def _pin(self, processors):
        """Gives each of the guest's processors a core of its own. Left alone, the host often runs
        two that spin on one core, and a round trip takes two of its time slices."""
        cores = sorted(os.sched_getaffinity(0))
        left = set(range(processors))
        while left and self.process.poll() is None:
            for thread in pathlib.Path(f"/proc/{self.process.pid}/task").glob("*"):
                name = re.match(r"CPU (\d+)/", (thread / "comm").read_text())
                if name and int(name[1]) in left:
                    os.sched_setaffinity(int(thread.name), {cores[int(name[1]) % len(cores)]})
                    left.remove(int(name[1]))
            time.sleep(0.01)

    def _drain(self):
        for relay in self.relays:
            relay.join()
        self.log.close()

    def _qemu(self, options, ends, cable):
        run = self.run
        line = ["qemu-system-x86_64", "-M", "q35", "-smp", options.cpus, "-m", options.memory,
                "-nodefaults", "-display", "none", "-no-reboot", "-device", "virtio-rng-pci",
                "-name", "guest,debug-threads=on"]
        line += ["-accel", "kvm", "-cpu", "host"] if options.kvm else [
            "-accel", "tcg,thread=multi", "-cpu", "max"]
        line += ["-kernel", self.kernel.vmlinux, "-initrd", run / "initrd",
                 "-append", f"{BOOT_ARGUMENTS} verbena_run={run}",
                 "-serial", f"file:{run}/console.log"]
        line += _share("/", "host", "readonly=on")
        if options.writable:
            line += _share(options.writable, "writable")
        for image in self.disks:
            line += disk.qemu_words(image)
        line += ["-device", "virtio-serial-pci"]
        for number, (name, end) in enumerate(zip(("out", "err"), ends), 1):
            line += ["-add-fd", f"fd={end},set={number}"]
            line += _port(name, f"/dev/fdset/{number},append=on")
        line += _port("status_port", f"{run}/status")
        if cable:
            mac = f"52:54:00:00:00:{self.host:02x}"
            wire = f"stream,id=cable,server=off,addr.type=fd,addr.str={cable.fileno()}"
            line += ["-netdev", wire, "-device", f"virtio-net-pci,netdev=cable,mac={mac},romfile="]
        return [str(word) for word in line]


def _share(path, tag, *more):
    words = [f"local,path={str(path).replace(',', ',,')}", f"mount_tag={tag}",
             "security_model=none", "multidevs=remap", *more]
    return ["-virtfs", ",".join(words)]


def _port(name, file):
    return ["-chardev", f"file,id={name},path={file}",
            "-device", f"virtserialport,chardev={name},name={name}"]

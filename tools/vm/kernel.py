"""The guest's kernel: Debian's own, downloaded and unpacked into a cache, never installed."""

import hashlib
import lzma
import os
import pathlib
import re
import shutil
import stat
import struct
import subprocess
import sys
import tempfile

# Modules that init loads, each after its dependencies. "siw" is built apart (siw.py).
MODULES = ("virtio_pci virtio_console virtio_rng virtio_net 9pnet_virtio 9p overlay "
           "crc32_generic crc32c_generic libcrc32c udp_tunnel ip6_udp_tunnel ib_core iw_cm "
           "ib_uverbs ib_umad rdma_cm rdma_ucm rdma_rxe veth dummy sch_netem").split()
# A guest with disks loads these after that.
DISK_MODULES = "virtio_blk ext4 dm_mod dm_log_writes loop".split()
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / (
    "verbena-vm")


class Unavailable(Exception):
    """The guest cannot run; the text says what is missing and what mends it."""


def output_of(*command):
    """The output of a command, or "" if it fails or is not there."""
    try:
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                              check=False).stdout
    except FileNotFoundError:
        return ""


def download(packages, directory):
    """Downloads Debian packages ("name=version") and unpacks them below `directory`."""
    with tempfile.TemporaryDirectory(dir=directory) as into:
        result = subprocess.run(["apt-get", "download", *packages], cwd=into, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if result.returncode != 0:
            raise Unavailable(f"cannot download {' '.join(packages)}:\n{result.stdout.strip()}\n"
                              "Run apt-get update (as root) and try again.")
        for package in pathlib.Path(into).glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, directory], check=True)


class Kernel:
    """One unpacked kernel: <directory>/vmlinux, and its modules in <directory>/modules."""

    def __init__(self, directory):
        self.directory = directory
        # linux-image-6.1.0-56-amd64_6.1.192-2_<digest of the modules' names>
        name, self.version, _ = directory.name.split("_")
        self.release = name[len("linux-image-"):]
        self.vmlinux = directory / "vmlinux"
        self.modules = directory / "modules"

    def load_order(self, disks=False):
        """The files of the modules, in the order of insmod."""
        order = (self.directory / "load_order").read_text().split()
        if disks:
            more = (self.directory / "disk_load_order").read_text().split()
            order += [name for name in more if name not in order]
        return order


def get():
    """The kernel that linux-image-amd64 stands for, downloaded once. If apt does not know that
    package, the newest kernel in the cache."""
    digest = hashlib.sha256(" ".join(MODULES + DISK_MODULES).encode()).hexdigest()[:8]
    name = re.search(r"Depends: (linux-image-\S+)", output_of("apt-cache", "depends",
                                                              "linux-image-amd64"))
    if not name:
        cached = list(CACHE.glob(f"linux-image-*_{digest}"))
        if cached:
            return Kernel(max(cached, key=lambda path: path.stat().st_mtime))
        raise Unavailable("apt knows no linux-image-amd64; as root, on Debian 12: apt-get update")
    shown = output_of("apt-cache", "show", "--no-all-versions", name[1])
    version = re.search(r"^Version: (\S+)", shown, re.MULTILINE)[1]
    directory = CACHE / f"{name[1]}_{version}_{digest}"
    if not directory.exists():
        _unpack(name[1], version, directory)
    return Kernel(directory)


def _unpack(name, version, directory):
    print(f"vm: downloading {name} {version} (once)", file=sys.stderr, flush=True)
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="unpacking-") as temporary:
        top = pathlib.Path(temporary)
        download([f"{name}={version}"], top)
        release = name[len("linux-image-"):]
        made = top / "made"
        (made / "modules").mkdir(parents=True)
        image = (top / "boot" / f"vmlinuz-{release}").read_bytes()
        (made / "vmlinux").write_bytes(_decompress(image))
        subprocess.run(["/sbin/depmod", "-b", top, release], check=True)
        dependencies = (top / "lib/modules" / release / "modules.dep").read_text()
        for name, modules in (("load_order", MODULES), ("disk_load_order", DISK_MODULES)):
            order = load_order_of(dependencies, modules)
            for path in order:
                shutil.copy(top / "lib/modules" / release / path, made / "modules")
            (made / name).write_text("".join(f"{os.path.basename(path)}\n" for path in order))
        try:
            made.rename(directory)
        except OSError:  # another process was faster
            if not directory.exists():
                raise


def _decompress(image):
    """The ELF inside a bzImage: booting it directly saves the guest two seconds of unpacking."""
    # Documentation/arch/x86/boot.rst: setup_sects, payload_offset, payload_length.
    setup = (image[0x1f1] or 4) + 1
    offset, length = struct.unpack("<II", image[0x248:0x250])
    payload = image[setup * 512 + offset:setup * 512 + offset + length]
    if payload[:6] != b"\xfd7zXZ\0":
        raise Unavailable("the kernel image is not compressed with xz")
    return lzma.LZMADecompressor().decompress(payload)


def load_order_of(dependencies, modules):
    """The paths of `modules` and what they need, in the order of insmod; from modules.dep's text."""
    needs = {}
    for line in dependencies.splitlines():
        path, _, rest = line.partition(":")
        needs[os.path.basename(path).split(".")[0].replace("-", "_")] = (path, rest.split())
    order = []
    for module in modules:
        if module not in needs:
            continue  # built in
        path, before = needs[module]
        for each in [*reversed(before), path]:
            if each not in order:
                order.append(each)
    return order


def write_initrd(path, kernel, init, extra_modules, disks=False):
    """An uncompressed cpio of busybox, `init` and the modules. Needs no root, unlike mknod."""
    busybox = pathlib.Path(shutil.which("busybox")).read_bytes()
    files = [("init", init.read_bytes(), stat.S_IFREG | 0o755, 0),
             ("busybox", busybox, stat.S_IFREG | 0o755, 0),
             ("dev", b"", stat.S_IFDIR | 0o755, 0),
             ("dev/console", b"", stat.S_IFCHR | 0o600, (5, 1)),
             ("modules", b"", stat.S_IFDIR | 0o755, 0)]
    modules = [kernel.modules / name for name in kernel.load_order(disks)] + list(extra_modules)
    files += [(f"modules/{module.name}", module.read_bytes(), stat.S_IFREG | 0o644, 0)
              for module in modules]
    order = "".join(f"{module.name}\n" for module in modules).encode()
    files.append(("modules/order", order, stat.S_IFREG | 0o644, 0))
    with open(path, "wb") as archive:
        for number, entry in enumerate(files, 1):
            archive.write(cpio_entry(number, *entry))
        archive.write(cpio_entry(0, "TRAILER!!!", b"", 0, 0))


def cpio_entry(number, name, content, mode, device):
    major, minor = device or (0, 0)
    fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, major, minor, len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
    return _padded(head) + _padded(content)


def _padded(data):
    return data + b"\0" * (-len(data) % 4)

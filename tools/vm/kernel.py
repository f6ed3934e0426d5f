"""The guest's kernel: Debian's own, downloaded and unpacked into a cache, never installed."""

import hashlib
import lzma
import os
import pathlib
import shutil
import stat
import struct
import subprocess
import sys
import tempfile

from archive import Archive, Unavailable, rename_unless_there

# Modules that init loads, each after its dependencies. "siw" is built apart (siw.py).
MODULES = ("virtio_pci virtio_console virtio_rng virtio_net 9pnet_virtio 9p overlay "
           "crc32_generic crc32c_generic libcrc32c udp_tunnel ip6_udp_tunnel ib_core iw_cm "
           "ib_uverbs ib_umad rdma_cm rdma_ucm rdma_rxe veth dummy sch_netem").split()
# A guest with disks loads these after that.
DISK_MODULES = "virtio_blk ext4 dm_mod dm_log_writes loop".split()


class Kernel:
    """One unpacked kernel: <directory>/vmlinux, and its modules in <directory>/modules."""

    def __init__(self, directory, archive):
        self.directory = directory
        self.archive = archive
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


def get(suite):
    """The kernel that linux-image-amd64 of `suite` stands for, downloaded once. If apt does not
    know that package, the newest kernel in the cache."""
    archive = Archive(suite)
    digest = hashlib.sha256(" ".join(MODULES + DISK_MODULES).encode()).hexdigest()[:8]
    name = archive.dependency("linux-image-amd64", r"linux-image-\S+")
    if not name:
        cached = list(archive.cache.glob(f"linux-image-*_{digest}"))
        if cached:
            return Kernel(max(cached, key=lambda path: path.stat().st_mtime), archive)
        mend = "as root, on Debian 12: apt-get update" if archive.is_this_machines else f"remove {archive.cache}"
        raise Unavailable(f"apt knows no linux-image-amd64 of {suite}; {mend}")
    version = archive.version(name)
    directory = archive.cache / f"{name}_{version}_{digest}"
    if not directory.exists():
        _unpack(archive, name, version, directory)
    return Kernel(directory, archive)


def _unpack(archive, name, version, directory):
    print(f"vm: downloading {name} {version} (once)", file=sys.stderr, flush=True)
    archive.cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.cache, prefix="unpacking-") as temporary:
        top = pathlib.Path(temporary)
        archive.download([f"{name}={version}"], top)
        if not (top / "lib").exists():  # Debian 13 has the modules in /usr/lib
            (top / "lib").symlink_to("usr/lib")
        release = name[len("linux-image-"):]
        made = top / "made"
        (made / "modules").mkdir(parents=True)
        image = (top / "boot" / f"vmlinuz-{release}").read_bytes()
        (made / "vmlinux").write_bytes(decompress_image(image))
        subprocess.run(["/sbin/depmod", "-b", top, release], check=True)
        dependencies = (top / "lib/modules" / release / "modules.dep").read_text()
        for name, modules in (("load_order", MODULES), ("disk_load_order", DISK_MODULES)):
            order = load_order_of(dependencies, modules)
            files = [os.path.basename(path).removesuffix(".xz") for path in order]
            for path, file in zip(order, files):
                module = plain_module(top / "lib/modules" / release / path)
                (made / "modules" / file).write_bytes(module)
            (made / name).write_text("".join(f"{file}\n" for file in files))
        rename_unless_there(made, directory)


def decompress_image(image):
    """The ELF inside a bzImage: booting it directly saves the guest two seconds of unpacking."""
    # Documentation/arch/x86/boot.rst: setup_sects, payload_offset, payload_length. The build puts
    # the length of the ELF behind what it compressed.
    setup = (image[0x1f1] or 4) + 1
    offset, length = struct.unpack("<II", image[0x248:0x250])
    payload = image[setup * 512 + offset:setup * 512 + offset + length]
    packed, size = payload[:-4], struct.unpack("<I", payload[-4:])[0]
    if packed[:6] == b"\xfd7zXZ\0":
        elf = lzma.decompress(packed)
    elif packed[:4] == b"\x28\xb5\x2f\xfd":
        elf = subprocess.run(["zstd", "-dc"], input=packed, stdout=subprocess.PIPE,
                             check=True).stdout
    else:
        raise Unavailable("the kernel image is compressed neither with xz nor with zstd")
    if len(elf) != size:
        raise Unavailable(f"the kernel image unpacks to {len(elf)} bytes, not to {size}")
    return elf


def plain_module(path):
    """The content of a module's file, which may be compressed, as Debian 13's are."""
    content = path.read_bytes()
    return lzma.decompress(content) if path.suffix == ".xz" else content


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

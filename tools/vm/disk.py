"""The guest's disks: image files of this host, behind virtio-blk.

The guest has a page cache of its own, which is lost when its QEMU is killed, as memory is lost in a
power cut. What the guest has sent to a disk is in the image's file by then, flushed or not. So a
disk's own volatile cache is not lost; dm-log-writes in the guest shows what happens to that.
"""

import subprocess

from archive import Unavailable

MIB = 1 << 20


def images(options, run):
    """The paths of the guest's disks: /dev/vda, /dev/vdb, ... The first may have a file system."""
    found = []
    if options.disk or options.disk_image:
        path = options.disk_image or run / "disk.ext4"
        if not path.exists():
            _format(path, options.disk or DEFAULT_MB)
        found.append(path)
    for number, megabytes in enumerate(options.raw_disk):
        path = run / f"disk{number}.raw"
        _allocate(path, megabytes)
        found.append(path)
    return found


DEFAULT_MB = 64


def _allocate(path, megabytes):
    with open(path, "wb") as image:
        image.truncate(megabytes * MIB)


def _format(path, megabytes):
    _allocate(path, megabytes)
    result = subprocess.run(["/sbin/mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0", path],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            check=False)
    if result.returncode != 0:
        path.unlink()
        raise Unavailable(f"mkfs.ext4 of {path} failed:\n{result.stdout.strip()}")


def qemu_words(image):
    """A disk that tells the guest of its cache, so that the guest's kernel flushes it."""
    name = f"disk_{image.name.replace('.', '_')}"
    file = str(image).replace(",", ",,")
    return ["-drive", f"if=none,id={name},format=raw,cache=writeback,discard=unmap,file={file}",
            "-device", f"virtio-blk-pci,drive={name}"]

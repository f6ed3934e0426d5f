"""Soft-iWARP for the guest. Debian's kernels lack it, so it is built once from their source."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

import root as roots
from archive import Unavailable


def module(kernel):
    """The path of siw.ko for `kernel`, built now if it is not in the cache."""
    built = kernel.directory / "siw.ko"
    if not built.exists():
        print(f"vm: building siw for {kernel.release} (once; downloads 150 MB)", file=sys.stderr,
              flush=True)
        with tempfile.TemporaryDirectory(dir=kernel.archive.cache, prefix="siw-") as directory:
            _build(kernel, pathlib.Path(directory)).rename(built)
    return built


def _build(kernel, top):
    series = re.match(r"\d+\.\d+", kernel.release)[0]  # 6.1
    common = kernel.release.rsplit("-", 1)[0] + "-common"  # 6.1.0-56-common
    headers = f"linux-headers-{kernel.release}"
    names = (f"linux-source-{series}", headers, f"linux-headers-{common}",
             kernel.archive.dependency(headers, r"linux-kbuild-\S+"))
    kernel.archive.download([f"{name}={kernel.version}" for name in names], top)
    source = f"linux-source-{series}/drivers/infiniband/sw/siw"
    archive = top / f"usr/src/linux-source-{series}.tar.xz"
    subprocess.run(["tar", "-xJf", archive, "-C", top, source], check=True)
    result = run_make(kernel, top, f"usr/src/{headers}", source)
    if result.returncode != 0:
        raise Unavailable(f"siw does not build:\n{result.stdout}")
    return top / source / "siw.ko"


def run_make(kernel, top, headers, source):
    """Runs make on the module below `top`: here, or in a root of Debian 13, whose kernel needs a
    newer compiler than this machine has."""
    here = kernel.archive.is_this_machines
    seen_as = top if here else roots.SEEN_AS
    # The headers name each other by where they would be installed.
    makefile = top / headers / "Makefile"
    makefile.write_text(makefile.read_text().replace("/usr/src/", f"{seen_as}/usr/src/"))
    # Types for BPF would need the program pahole.
    command = ["make", "-C", f"{seen_as}/{headers}", f"M={seen_as}/{source}", "CONFIG_RDMA_SIW=m",
               "CONFIG_DEBUG_INFO_BTF_MODULES=", f"-j{os.cpu_count()}", "modules"]
    if here:
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False)
    return roots.run_in(roots.trixie_root(kernel.archive.cache), top, command)

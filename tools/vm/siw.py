"""Soft-iWARP for the guest. Debian's kernels lack it, so it is built once from their source."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

import kernel as kernels


def module(kernel):
    """The path of siw.ko for `kernel`, built now if it is not in the cache."""
    built = kernel.directory / "siw.ko"
    if not built.exists():
        print(f"vm: building siw for {kernel.release} (once; downloads 150 MB)", file=sys.stderr,
              flush=True)
        with tempfile.TemporaryDirectory(dir=kernels.CACHE, prefix="siw-") as directory:
            _build(kernel, pathlib.Path(directory)).rename(built)
    return built


def _build(kernel, top):
    series = re.match(r"\d+\.\d+", kernel.release)[0]  # 6.1
    common = kernel.release.rsplit("-", 1)[0] + "-common"  # 6.1.0-56-common
    names = (f"linux-source-{series}", f"linux-headers-{kernel.release}", f"linux-headers-{common}",
             f"linux-kbuild-{series}")
    kernels.download([f"{name}={kernel.version}" for name in names], top)
    source = f"linux-source-{series}/drivers/infiniband/sw/siw"
    archive = top / f"usr/src/linux-source-{series}.tar.xz"
    subprocess.run(["tar", "-xJf", archive, "-C", top, source], check=True)
    headers = top / f"usr/src/linux-headers-{kernel.release}"
    # The headers name each other by where they would be installed.
    makefile = headers / "Makefile"
    makefile.write_text(makefile.read_text().replace("/usr/src/", f"{top}/usr/src/"))
    result = subprocess.run(
        ["make", "-C", headers, f"M={top / source}", "CONFIG_RDMA_SIW=m", f"-j{os.cpu_count()}",
         "modules"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if result.returncode != 0:
        raise kernels.Unavailable(f"siw does not build:\n{result.stdout}")
    return top / source / "siw.ko"

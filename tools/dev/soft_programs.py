"""The programs of others that ./dev soft --report runs on the soft device, one row each."""

import dataclasses
import re

# Replaced in arguments: {port} by a free TCP port, {device} by soft0 for the server and soft1 for the client.
_PERFTEST = ("-d", "{device}", "-p", "{port}", "-F")
_CM = ("-p", "{port}", "-F", "-R")
_ANYWHERE = "127.0.0.1"


@dataclasses.dataclass(frozen=True)
class Row:
    """One program with its arguments. A row without a client is one process."""

    program: str
    server: tuple
    client: tuple = None
    # How the table shows what both sides have in common.
    arguments: str = ""
    # Finds the figure in the client's output: a function of the text, or None.
    figure: object = None
    # Part of ./dev test.
    short: bool = False
    seconds: float = 30
    environment: tuple = ()
    # Programs that never end: ended once this text is in the output, and not before.
    until: str = ""
    # A server that never ends by itself.
    server_stays: bool = False
    # Text without which the output is wrong though the status is 0.
    expects: str = ""
    # The row prints figures, and ./dev bench takes them.
    figure_name: str = ""


def _last_numbers(text):
    """The columns of the last line of `text` that is all numbers."""
    # A mean or deviation may be no number.
    rows = [line.split() for line in text.splitlines()
            if re.fullmatch(r"\s*\d[\d.]*(\s+-?([\d.]+|nan|inf)){2,}\s*", line)]
    return [float(column) for column in rows[-1]] if rows else []


def latency(text):
    """perftest's table of latencies: bytes, iterations, least, most, typical, mean, deviation, 99%, 99.9%."""
    columns = _last_numbers(text)
    return f"typical {columns[4]:g} µs, p99 {columns[7]:g} µs" if len(columns) >= 9 else ""


def bandwidth(text):
    """perftest's table of bandwidths: bytes, iterations, peak and mean MB/s, million messages per second."""
    columns = _last_numbers(text)
    return f"{columns[3] * 1.048576 / 1000:.2f} GB/s, {columns[4]:g} M/s" if len(columns) >= 5 else ""


def pingpong(text):
    found = re.search(r"= ([\d.]+) usec/iter", text)
    return f"{found.group(1)} µs for each round trip" if found else ""


def ucx_latency(text):
    found = re.findall(r"^Final:\s+\d+\s+([\d.]+)", text, re.MULTILINE)
    return f"p50 {found[-1]} µs" if found else ""


def _pingpong(program, *more, short=False):
    arguments = ("-d", "{device}", "-p", "{port}", *more)
    return Row(program, arguments, (*arguments, _ANYWHERE), " ".join(more), pingpong, short=short)


def _perftest(program, *more, common=_PERFTEST, short=False, figure_name=""):
    figure = latency if program.endswith("_lat") else bandwidth
    shown = " ".join((*(("-R",) if common is _CM else ()), *more))
    return Row(program, (*common, *more), (*common, *more, _ANYWHERE), shown, figure, short=short,
               expects="#bytes", figure_name=figure_name)


def _verbs_rows():
    yield Row("ibv_devices", (), short=True, expects="soft0")
    yield Row("ibv_devinfo", (), short=True, expects="soft0")
    yield Row("ibv_devinfo", ("-v",), arguments="-v", expects="soft0")
    yield _pingpong("ibv_rc_pingpong", short=True)
    yield _pingpong("ibv_rc_pingpong", "-e", short=True)
    yield _pingpong("ibv_rc_pingpong", "-g", "0")
    yield _pingpong("ibv_rc_pingpong", "-s", "1048576", "-n", "100")
    yield _pingpong("ibv_srq_pingpong", short=True)
    yield _pingpong("ibv_srq_pingpong", "-e")
    yield Row("ibv_asyncwatch", ("-d", "{device}"), short=True, until="async event")


def _perftest_rows():
    for operation in ("send", "write", "read"):
        lat, bw = f"ib_{operation}_lat", f"ib_{operation}_bw"
        yield _perftest(lat, "-s", "32", "-n", "5000", short=True,
                        figure_name="send_lat_32" if operation == "send" else "")
        if operation != "read":
            yield _perftest(lat, "-s", "32", "-I", "32", "-n", "5000")
        if operation != "write":  # perftest waits for no events of WRITEs
            yield _perftest(lat, "-s", "32", "-e", "-n", "2000")
        yield _perftest(lat, "-s", "32", "-n", "2000", common=_CM, short=operation == "send")
        for queue_pairs in ("1", "4", "16"):
            yield _perftest(bw, "-s", "65536", "-n", "1000", "-q", queue_pairs,
                            short=operation == "write" and queue_pairs == "4",
                            figure_name="write_bw_64k" if (operation, queue_pairs) == ("write", "1") else "")
        if operation != "read":
            yield _perftest(bw, "-s", "32", "-I", "32", "-n", "5000")
        if operation != "write":
            yield _perftest(bw, "-s", "65536", "-e", "-n", "1000")
        yield _perftest(bw, "-s", "65536", "-b", "-n", "1000", "-q", "4")
        yield _perftest(bw, "-s", "65536", "-n", "1000", common=_CM)
    yield _perftest("ib_send_bw", "-s", "4096", "--use-srq", "-n", "1000", "-q", "4")
    for kind in ("FETCH_AND_ADD", "CMP_AND_SWAP"):
        yield _perftest("ib_atomic_lat", "-A", kind, "-n", "2000", short=kind == "FETCH_AND_ADD")
        for queue_pairs in ("1", "4", "16"):
            yield _perftest("ib_atomic_bw", "-A", kind, "-n", "1000", "-q", queue_pairs)
    yield _perftest("ib_atomic_lat", "-e", "-n", "1000")
    yield _perftest("ib_atomic_bw", "-b", "-n", "1000")
    yield _perftest("ib_atomic_lat", "-n", "1000", common=_CM)


def _cm_rows():
    def pair(program, server, client, arguments, client_program="", **more):
        return Row(program + (f", {client_program}" if client_program else ""), server, client, arguments, **more)

    ping = ("-p", "{port}", "-a", _ANYWHERE, "-C", "100", "-S", "4096", "-V")
    yield pair("rping", ("-s", *ping), ("-c", *ping), "-C 100 -S 4096 -V", short=True)
    yield pair("rping", ("-s", *ping, "-q"), ("-c", *ping, "-q"), "-q -C 100 -S 4096 -V")
    many = ("-p", "{port}", "-c", "8", "-C", "20", "-S", "4096")
    yield pair("ucmatose", ("-b", _ANYWHERE, *many), ("-s", _ANYWHERE, *many), "-c 8 -C 20 -S 4096", short=True)
    yield pair("ucmatose", ("-b", _ANYWHERE, *many, "-m"), ("-s", _ANYWHERE, *many, "-m"),
               "-m -c 8 -C 20 -S 4096")
    yield pair("rdma_server", ("-p", "{port}"), ("-s", _ANYWHERE, "-p", "{port}"), "", "rdma_client", short=True)
    yield pair("rdma_xserver", ("-p", "{port}", "-c", "r"), ("-s", _ANYWHERE, "-p", "{port}", "-c", "r"), "-c r",
               "rdma_xclient")
    yield pair("cmtime", ("-b", _ANYWHERE, "-p", "{port}", "-c", "100"),
               ("-s", _ANYWHERE, "-p", "{port}", "-c", "100"), "-c 100", server_stays=True)


def _library_rows():
    for test, *more in (("am_lat",), ("am_bw", "-s", "4096", "-D", "bcopy"), ("put_lat",),
                        ("put_bw", "-s", "65536", "-D", "zcopy"), ("get", "-s", "65536", "-D", "zcopy"), ("fadd",)):
        arguments = ("-d", "{device}:1", "-x", "rc_verbs", "-t", test, *more, "-n", "10000", "-p", "{port}")
        yield Row("ucx_perftest", arguments, (*arguments, _ANYWHERE), f"-x rc_verbs -t {' '.join((test, *more))}",
                  ucx_latency, expects="Final:", short=test == "am_lat")
    common = ("-p", "verbs;ofi_rxm", "-e", "rdm", "-I", "1000", "-S", "1024")
    yield Row("fi_pingpong", (*common, "-B", "{port}"), (*common, "-P", "{port}", _ANYWHERE),
              "-p verbs;ofi_rxm -e rdm")
    common = ("-p", "verbs", "-e", "msg", "-I", "1000", "-S", "1024")
    yield Row("fi_pingpong", (*common, "-B", "{port}"), (*common, "-P", "{port}", _ANYWHERE), "-p verbs -e msg", short=True)


ROWS = (*_verbs_rows(), *_perftest_rows(), *_cm_rows(), *_library_rows())

"""The folders of the product, and what each of them may use: folders, and libraries of other projects.

Bazel makes each folder's library of it (verbena_folder() in cc.bzl), and tools/dev/layers.py holds every
#include and every dependency to it. Both run this file, so it has only what Starlark and Python share.
"""

_CORO = ["transport/base", "transport/coro"]
_DEVICE = _CORO + ["transport/device"]
_MEMORY = _DEVICE + ["transport/memory"]
_EXECUTOR = _MEMORY + ["transport/executor"]
_LINK = _EXECUTOR + ["transport/link", "transport/connect", "proto"]
_CALL = _LINK + ["rpc", "rpc/call"]
_SHARD = _CALL + ["rpc/stream", "rpc/shard", "rpc/naming"]

# What these use is bounded by review, not by a table.
_ANYTHING = None

# Folder -> the folders, besides itself, that it may use. Arrows point down. The longest folder that a
# file lies in decides. ARCHITECTURE.md shows a picture of this table.
FOLDERS = {
    "proto": [],
    "transport/base": [],
    "transport/coro": ["transport/base"],
    "transport/device": _CORO,
    "transport/verbs": _DEVICE,  # verbs and soft implement Device, and do not know each other
    "transport/soft": _DEVICE,
    "transport/preload": _DEVICE + ["transport/soft"],  # a library of its own; nobody uses it
    "transport/memory": _DEVICE,
    "transport/executor": _DEVICE,
    "transport/file": _EXECUTOR,
    "transport/connect": _CORO + ["proto"],
    "transport/link": _EXECUTOR + ["transport/connect"],
    # The floor: what programs see of calls, and no bodies. //rpc joins it with the folders below.
    "rpc": _LINK + ["transport/file"],
    "rpc/call": _LINK + ["rpc"],
    "rpc/naming": _EXECUTOR + ["rpc"],
    "rpc/stream": _CALL,
    "rpc/shard": _LINK + ["rpc", "rpc/stream", "transport/verbs", "transport/soft"],  # opens devices
    "rpc/client": _SHARD,
    "rpc/server": _SHARD,
    # Optional (//rpc:etcd). It speaks HTTP on a thread of its own, as the bootstraps do: their
    # IoThread serves here, too.
    "rpc/naming/etcd": _EXECUTOR + ["rpc", "rpc/call", "rpc/naming", "transport/connect"],
    # Optional (//rpc:admin). It has a thread and an io_context of its own.
    "rpc/admin": ["transport/base", "rpc", "rpc/shard"],
    # Optional (//rpc:reflection): it knows a server by rpc/server/server_of.h alone.
    "rpc/reflection": _CORO + ["rpc", "rpc/server"],
    "rpc/codegen": ["proto", "rpc"],  # of rpc the version alone
    "rpc/testing": _CORO + ["rpc"],  # for users' tests; nothing but tests may use it
    # Users include nothing below transport/.
    "examples": ["rpc", "proto"],
    "benchmarks": _ANYTHING,
    "tests": _ANYTHING,
    "tools": _ANYTHING,
    "tools/pch": _ANYTHING,
}

# Library of another project -> how its includes look, its targets, and the folders that may use it. A
# folder's library depends on it if the folder is named, or lies below one that is.
LIBRARIES = {
    "protobuf": (
        "google/protobuf/|.*\\.pb\\.h$",
        ["@com_google_protobuf//:protobuf"],
        ["proto", "rpc", "transport/connect", "examples", "benchmarks", "tests", "tools"],
    ),
    "verbs": (
        "infiniband/",
        ["@rdma//:ibverbs"],
        ["transport/device", "transport/verbs", "transport/soft", "transport/preload", "transport/memory"] +
        ["transport/executor", "transport/connect", "transport/link", "benchmarks", "tests", "tools"],
    ),
    "rdma_cm": (
        "rdma/",
        ["@rdma//:rdmacm"],
        ["transport/connect", "transport/preload", "tests"],
    ),
    "Asio": (
        "boost/asio",
        ["@boost//:asio"],
        ["transport/connect", "rpc/admin", "rpc/naming/etcd", "benchmarks", "tests", "tools"],
    ),
    "Beast": (
        "boost/beast",
        ["@boost//:beast"],
        ["rpc/admin", "rpc/naming/etcd", "tests", "tools"],
    ),
    "CLI11": (
        "CLI/",
        ["@cli11"],
        ["tools"],
    ),
    "Boost.JSON": (
        "boost/json",
        ["@boost_json//:json"],
        ["rpc/admin", "rpc/naming", "tests", "tools"],
    ),
    "liburing": (
        "liburing",
        ["@uring"],
        ["transport/executor", "benchmarks", "tests"],
    ),
    "ISA-L": (
        "isa-l",
        ["@isal//:crc"],
        ["transport/memory"],
    ),
    "RocksDB": (
        "rocksdb/",
        ["@rocksdb"],
        ["examples", "tests"],
    ),
    "OpenSSL": (
        "openssl/",
        ["@openssl//:ssl"],
        ["rpc/naming/etcd", "examples", "tests"],
    ),
}

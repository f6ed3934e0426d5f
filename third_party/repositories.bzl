"""verbena_repositories(): the system libraries that Verbena builds against, as Bazel repositories."""

load("//third_party:system.bzl", "system_library")

def _library(name, **kwargs):
    if not native.existing_rule(name):
        system_library(name = name, **kwargs)

def verbena_repositories():
    """Declares one repository per Debian package set. Call it from a user's WORKSPACE too.

    One that the workspace declared before is left alone, and must offer the same targets.
    """
    _library(
        name = "absl",
        build_file = "@verbena//third_party:absl.BUILD",
        deb = "libabsl-dev",
        hdrs = ["absl/status/statusor.h"],
        pkg_config = [
            "absl_base",
            "absl_cleanup",
            "absl_flags",
            "absl_flags_parse",
            "absl_flags_usage",
            "absl_flat_hash_map",
            "absl_flat_hash_set",
            "absl_inlined_vector",
            "absl_span",
            "absl_status",
            "absl_statusor",
            "absl_str_format",
            "absl_strings",
            "absl_time",
        ],
    )
    _library(
        name = "fmt",
        build_file = "@verbena//third_party:fmt.BUILD",
        deb = "libfmt-dev",
        hdrs = ["fmt/format.h"],
        libs = ["fmt"],
    )
    _library(
        name = "rdma",
        build_file = "@verbena//third_party:rdma.BUILD",
        deb = "libibverbs-dev librdmacm-dev",
        hdrs = ["infiniband/verbs.h", "rdma/rdma_cma.h"],
        libs = ["ibverbs", "rdmacm"],
    )
    _library(
        name = "uring",
        build_file = "@verbena//third_party:uring.BUILD",
        deb = "liburing-dev",
        hdrs = ["liburing.h"],
        libs = ["uring"],
    )
    _library(
        name = "isal",
        build_file = "@verbena//third_party:isal.BUILD",
        deb = "libisal-dev",
        hdrs = ["isa-l/crc.h"],
        libs = ["isal"],
    )
    _library(
        name = "boost",
        build_file = "@verbena//third_party:boost.BUILD",
        deb = "libboost1.81-dev",
        hdrs = ["boost/asio.hpp", "boost/beast.hpp"],
    )
    _library(
        name = "boost_json",
        build_file = "@verbena//third_party:boost_json.BUILD",
        deb = "libboost1.81-dev",
        hdrs = ["boost/json/src.hpp"],
    )
    # For tools/verbena alone.
    _library(
        name = "cli11",
        build_file = "@verbena//third_party:cli11.BUILD",
        deb = "libcli11-dev",
        hdrs = ["CLI/CLI.hpp"],
    )
    _library(
        name = "openssl",
        build_file = "@verbena//third_party:openssl.BUILD",
        deb = "libssl-dev",
        hdrs = ["openssl/sha.h", "openssl/ssl.h"],
        libs = ["crypto", "ssl"],
    )

    # For examples/kv alone. Bazel looks for a repository only when it builds a target that needs it,
    # so users of Verbena build without this package.
    _library(
        name = "rocksdb",
        build_file = "@verbena//third_party:rocksdb.BUILD",
        deb = "librocksdb-dev",
        hdrs = ["rocksdb/db.h"],
        libs = ["rocksdb"],
    )
    _library(
        name = "com_google_protobuf",
        build_file = "@verbena//third_party:protobuf.BUILD",
        data_dirs = ["google/protobuf"],
        deb = "libprotobuf-dev libprotoc-dev protobuf-compiler",
        hdrs = ["google/protobuf/message.h", "google/protobuf/compiler/plugin.h"],
        libs = ["protobuf", "protoc"],
        tools = ["protoc"],
    )
    _library(
        name = "gtest",
        build_file = "@verbena//third_party:gtest.BUILD",
        deb = "libgtest-dev libgmock-dev",
        hdrs = ["gtest/gtest.h", "gmock/gmock.h"],
        libs = ["gtest", "gmock", "gtest_main", "gmock_main"],
    )

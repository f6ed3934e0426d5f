"""verbena_benchmarks: a folder of benchmarks."""

load("//tools:cc.bzl", "PRODUCT", "cc_binary", "verbena_cc_library")
load("//tools:proto.bzl", "verbena_proto_library")

def verbena_benchmarks(deps = [], protos = [], apart = []):
    """A program for each *_bench.cc of a folder, and a library, which has the folder's name, of its other files.

    Args:
      deps: what they use besides the product.
      protos: names of .proto files of the folder; the library of one is <name>_messages.
      apart: sources and headers of other targets.
    """
    package = native.package_name()
    visibility = ["//benchmarks:__subpackages__", "//tests/benchmarks:__subpackages__"]
    programs = native.glob(["*_bench.cc"])
    for name in protos:
        verbena_proto_library(
            name = name + "_messages",
            testonly = True,
            srcs = [name + ".proto"],
            visibility = visibility,
            deps = ["//proto:options_proto", "//proto:remote_memory_proto"],
        )
    used = PRODUCT + deps + [":%s_messages" % name for name in protos]
    library = package.split("/")[-1]
    verbena_cc_library(
        name = library,
        testonly = True,
        srcs = native.glob(["*.cc"], exclude = programs + apart),
        hdrs = native.glob(["*.h"], exclude = apart),
        visibility = visibility,
        deps = used,
    )
    for program in programs:
        cc_binary(
            name = program[:-len(".cc")],
            testonly = True,
            srcs = [program],
            visibility = visibility,
            deps = used + [":" + library],
        )

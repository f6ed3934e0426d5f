"""golden_proto: a .proto of testdata/, compiled strictly, for comparison with its golden files."""

load("//tools:proto.bzl", "cc_verbena_library")

_STRICT = [
    "-Wconversion",
    "-Wdeprecated",
    "-Wdocumentation",
    "-Wextra-semi",
    "-Wnon-virtual-dtor",
    "-Woverloaded-virtual",
    "-Wshadow-all",
    "-Wunused",
    "-Werror=deprecated-declarations",
]

def golden_proto(name, deps = [], messages = [], **kwargs):
    """proto_library, cc_proto_library and cc_verbena_library of testdata/<name>.proto.

    Args:
      name: of the .proto; the targets are <name>_proto, <name>_cc_proto and <name>_cc_verbena.
      deps: proto_librarys that it imports.
      messages: their cc_proto_librarys.
      **kwargs: parameters of cc_verbena_library.
    """
    native.proto_library(
        name = name + "_proto",
        srcs = ["testdata/%s.proto" % name],
        strip_import_prefix = "/tests/rpc/codegen",
        deps = deps,
    )
    native.cc_proto_library(
        name = name + "_cc_proto",
        deps = [name + "_proto"],
    )
    cc_verbena_library(
        name = name + "_cc_verbena",
        copts = _STRICT,
        proto = name + "_proto",
        deps = [name + "_cc_proto"] + messages,
        **kwargs
    )

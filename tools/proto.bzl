"""Rules for the stubs and services (foo.verbena.pb.{h,cc}) of a .proto.

verbena_proto_library makes a library of a .proto. cc_verbena_library makes one of a proto_library that
is there already.
"""

# Arguments of cc_library that the mocks' library gets, too.
_MOCK_ATTRIBUTES = ["copts", "features", "tags", "visibility"]

def _import_path(file, source_root):
    # ProtoInfo.proto_source_root is where imports start: a virtual directory when the proto_library
    # has import_prefix or strip_import_prefix, the repository's root otherwise.
    path = file.path
    for root in [source_root, file.root.path, file.owner.workspace_root]:
        if root and root != "." and path.startswith(root + "/"):
            path = path[len(root) + 1:]
    return path

def _without_extension(path):
    return path.rpartition(".")[0]

def _generate_impl(ctx):
    info = ctx.attr.proto[ProtoInfo]
    directory = ctx.label.name  # outputs lie below it, so that nothing collides in the package
    imports = [_import_path(file, info.proto_source_root) for file in info.direct_sources]
    headers = []
    sources = []
    mocks = []
    for path in imports:
        base = "%s/%s" % (directory, _without_extension(path))
        headers.append(ctx.actions.declare_file(base + ".verbena.pb.h"))
        sources.append(ctx.actions.declare_file(base + ".verbena.pb.cc"))
        if "generate_mock_code" in ctx.attr.parameters:
            mocks.append(ctx.actions.declare_file(base + "_mock.verbena.pb.h"))
    out = [ctx.bin_dir.path, ctx.label.workspace_root, ctx.label.package, directory]
    args = ctx.actions.args()

    # Sources and not descriptor sets are read: Bazel's descriptor sets hold no comments.
    args.add(info.proto_source_root or ".", format = "--proto_path=%s")
    args.add_all(info.transitive_proto_path, format_each = "--proto_path=%s")
    args.add(ctx.executable._plugin, format = "--plugin=protoc-gen-verbena=%s")
    args.add("/".join([part for part in out if part]), format = "--verbena_out=%s")
    for name, value in sorted(ctx.attr.parameters.items()):
        args.add("--verbena_opt=%s=%s" % (name, value))
    args.add_all(imports)
    ctx.actions.run(
        executable = ctx.executable._protoc,
        arguments = [args],
        inputs = info.transitive_sources,
        tools = [ctx.executable._plugin],
        outputs = headers + sources + mocks,
        mnemonic = "VerbenaProto",
        progress_message = "Generating Verbena stubs %s" % ctx.label,
    )
    return [
        DefaultInfo(files = depset(headers + sources + mocks)),
        OutputGroupInfo(hdrs = depset(headers), srcs = depset(sources), mocks = depset(mocks)),
    ]

_generate = rule(
    implementation = _generate_impl,
    attrs = {
        "proto": attr.label(mandatory = True, providers = [ProtoInfo]),
        "parameters": attr.string_dict(),
        "_plugin": attr.label(
            default = "@verbena//rpc/codegen:protoc-gen-verbena",
            executable = True,
            cfg = "exec",
        ),
        "_protoc": attr.label(
            default = "@com_google_protobuf//:bin/protoc",
            executable = True,
            allow_single_file = True,
            cfg = "exec",
        ),
    },
)

def cc_verbena_library(
        name,
        proto,
        deps = [],
        generate_mock_code = False,
        services_namespace = "",
        export_macro = "",
        testonly = None,
        **kwargs):
    """A cc_library with the stubs and services of `proto`.

        proto_library(name = "echo_proto", srcs = ["echo.proto"])
        cc_proto_library(name = "echo_cc_proto", deps = [":echo_proto"])
        cc_verbena_library(
            name = "echo_cc_verbena",
            proto = ":echo_proto",
            deps = [":echo_cc_proto"],
        )

    gives echo.verbena.pb.h, included by the path that imports of echo.proto use.
    verbena_proto_library makes all three targets at once, and is enough for most projects. Write
    the three if proto_library and cc_proto_library exist already, if they are in another package
    or repository, or if some users of the messages must not link @verbena//rpc.

    Args:
      name: the target's name.
      proto: a proto_library, in any package or repository.
      deps: the cc_proto_library of `proto`.
      generate_mock_code: if True, <name>_mock is a library for tests with echo_mock.verbena.pb.h,
        which holds a GoogleMock mock of each StubInterface.
      services_namespace: if not empty, the classes lie in this namespace below the package's.
      export_macro: if not empty, a macro before the name of each class, for libraries that hide
        their symbols. `defines` must define it for these files and for all that include them.
      testonly: as everywhere.
      **kwargs: passed to cc_library.
    """
    generated = name + ".gen"
    parameters = {}
    if generate_mock_code:
        parameters["generate_mock_code"] = "true"
    if services_namespace:
        parameters["services_namespace"] = services_namespace
    if export_macro:
        parameters["export_macro"] = export_macro
    _generate(name = generated, proto = proto, parameters = parameters, testonly = testonly)
    for group in ["hdrs", "srcs", "mocks"]:
        native.filegroup(
            name = generated + "." + group,
            srcs = [generated],
            output_group = group,
            testonly = testonly,
        )
    native.cc_library(
        name = name,
        srcs = [generated + ".srcs"],
        hdrs = [generated + ".hdrs"],
        strip_include_prefix = generated,
        testonly = testonly,
        deps = deps + [
            "@verbena//rpc",  # what stubs call, linked after them
            "@verbena//rpc:generated",
            "@verbena//rpc:version",
            "@com_google_protobuf//:protobuf",
        ],
        **kwargs
    )
    if generate_mock_code:
        native.cc_library(
            name = name + "_mock",
            testonly = True,
            hdrs = [generated + ".mocks"],
            strip_include_prefix = generated,
            deps = deps + [
                name,
                "@absl",
                "@gtest",
                "@verbena//rpc",
                "@verbena//rpc/testing:mock_stream",
                "@verbena//rpc/testing:mocked_call",
            ],
            **{key: value for key, value in kwargs.items() if key in _MOCK_ATTRIBUTES}
        )

def _together_impl(ctx):
    return [
        # Both count as this target's own headers, so that a user depends on this target alone.
        cc_common.merge_cc_infos(direct_cc_infos = [dep[CcInfo] for dep in ctx.attr.deps]),
        DefaultInfo(runfiles = ctx.runfiles(collect_default = True)),
    ]

_together = rule(
    implementation = _together_impl,
    attrs = {"deps": attr.label_list(mandatory = True, providers = [CcInfo])},
    provides = [CcInfo],
)

def verbena_proto_library(
        name,
        srcs,
        deps = [],
        import_prefix = None,
        strip_import_prefix = None,
        testonly = None,
        visibility = None,
        tags = None,
        **kwargs):
    """A library with the messages, stubs and services of `srcs`.

        verbena_proto_library(name = "echo", srcs = ["echo.proto"])
        cc_binary(name = "server", srcs = ["server.cc"], deps = [":echo", "@verbena//rpc"])

    gives echo.pb.h and echo.verbena.pb.h. The parts have names of their own: echo_proto, which other
    .protos import, echo_cc_proto and echo_cc_verbena.

    Args:
      name: the target's name.
      srcs: .proto files.
      deps: proto_librarys that they import: `":echo_proto"` for another verbena_proto_library.
      import_prefix: as in proto_library.
      strip_import_prefix: as in proto_library.
      testonly: as everywhere.
      visibility: as everywhere, of all targets.
      tags: as everywhere, of all targets.
      **kwargs: passed to cc_verbena_library, such as generate_mock_code. With it, <name>_mock is the
        library of mocks.
    """
    common = {"tags": tags, "testonly": testonly, "visibility": visibility}
    prefixes = {
        "import_prefix": import_prefix,
        "strip_import_prefix": strip_import_prefix,
    }
    native.proto_library(
        name = name + "_proto",
        srcs = srcs,
        deps = deps,
        # A prefix that is set and empty differs from one that is not set.
        **dict(common, **{key: value for key, value in prefixes.items() if value != None})
    )
    native.cc_proto_library(name = name + "_cc_proto", deps = [name + "_proto"], **common)
    cc_verbena_library(
        name = name + "_cc_verbena",
        proto = name + "_proto",
        deps = [name + "_cc_proto"],
        **dict(common, **kwargs)
    )
    _together(name = name, deps = [name + "_cc_verbena", name + "_cc_proto"], **common)
    if kwargs.get("generate_mock_code"):
        _together(
            name = name + "_mock",
            deps = [name + "_cc_verbena_mock"],
            **dict(common, testonly = True)
        )

"""cc_verbena_library: stubs and services (foo.verbena.pb.{h,cc}) for the services of a proto_library."""

def _import_path(file, source_root):
    # ProtoInfo.proto_source_root is where imports start: a virtual directory when the proto_library
    # has import_prefix or strip_import_prefix, the repository's root otherwise.
    path = file.path
    if source_root and source_root != "." and path.startswith(source_root + "/"):
        return path[len(source_root) + 1:]
    for root in [file.root.path + "/", "external/" + (file.owner.workspace_name or "-") + "/"]:
        if path.startswith(root):
            path = path[len(root):]
    return path

def _generate_impl(ctx):
    info = ctx.attr.proto[ProtoInfo]
    directory = ctx.label.name  # outputs lie below it, so that nothing collides in the package
    sources = []
    headers = []
    imports = []
    for file in info.direct_sources:
        path = _import_path(file, info.proto_source_root)
        imports.append(path)
        base = "%s/%s" % (directory, path[:-len(".proto")])
        headers.append(ctx.actions.declare_file(base + ".verbena.pb.h"))
        sources.append(ctx.actions.declare_file(base + ".verbena.pb.cc"))
    out = "/".join([p for p in [ctx.bin_dir.path, ctx.label.workspace_root, ctx.label.package, directory] if p])
    descriptors = info.transitive_descriptor_sets
    args = ctx.actions.args()
    args.add_joined("--descriptor_set_in", descriptors, join_with = ctx.configuration.host_path_separator)
    args.add("--plugin=protoc-gen-verbena=" + ctx.executable._plugin.path)
    args.add("--verbena_out=" + out)
    args.add_all(imports)
    ctx.actions.run(
        executable = ctx.executable._protoc,
        arguments = [args],
        inputs = descriptors,
        tools = [ctx.executable._plugin],
        outputs = headers + sources,
        mnemonic = "VerbenaProto",
        progress_message = "Generating Verbena stubs %s" % ctx.label,
    )
    return [
        DefaultInfo(files = depset(headers + sources)),
        OutputGroupInfo(hdrs = depset(headers), srcs = depset(sources)),
    ]

_generate = rule(
    implementation = _generate_impl,
    attrs = {
        "proto": attr.label(mandatory = True, providers = [ProtoInfo]),
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

def cc_verbena_library(name, proto, deps = [], **kwargs):
    """A cc_library with the stubs and services of `proto`.

    Args:
      name: the target's name.
      proto: a proto_library; foo.proto gives foo.verbena.pb.h, included by its import path.
      deps: the cc_proto_library of `proto`, and cc_proto_librarys of what its services use.
      **kwargs: passed to cc_library.
    """
    generated = name + ".gen"
    _generate(name = generated, proto = proto)
    native.filegroup(name = generated + ".hdrs", srcs = [generated], output_group = "hdrs")
    native.filegroup(name = generated + ".srcs", srcs = [generated], output_group = "srcs")
    native.cc_library(
        name = name,
        srcs = [generated + ".srcs"],
        hdrs = [generated + ".hdrs"],
        strip_include_prefix = generated,
        deps = deps + [
            "@verbena//rpc:generated",
            "@com_google_protobuf//:protobuf",
        ],
        **kwargs
    )

"""public_headers: a C++ source that includes every public header of its targets."""

def _impl(ctx):
    includes = {}
    for target in ctx.attr.targets:
        for header in target[CcInfo].compilation_context.direct_public_headers:
            # verbena_cc_library gives headers their include path below _virtual_includes/<target>/.
            path = header.path
            if "/_virtual_includes/" in path:
                path = path.split("/_virtual_includes/")[1].split("/", 1)[1]
                includes[path] = True
    if not includes:
        fail("no public headers below verbena/")
    source = ctx.actions.declare_file(ctx.label.name + ".h")
    ctx.actions.write(
        source,
        "".join(['#include "%s"  // IWYU pragma: export\n' % path for path in sorted(includes)]),
    )
    return [DefaultInfo(files = depset([source]))]

public_headers = rule(
    implementation = _impl,
    attrs = {"targets": attr.label_list(mandatory = True, providers = [CcInfo])},
)

"""unity_source: one source that includes others, so that the compiler parses their headers once."""

def _unity_source_impl(ctx):
    output = ctx.actions.declare_file(ctx.label.name)
    lines = ["#include \"%s\"" % _quoted_name(source) for source in ctx.files.srcs]
    ctx.actions.write(output, "\n".join(lines) + "\n")
    return [DefaultInfo(files = depset([output]))]

def _quoted_name(source):
    """How a source is included, also from a workspace that uses this one: below its repository."""
    name = source.path
    for root in [source.root.path + "/", source.owner.workspace_root + "/"]:
        if root != "/" and name.startswith(root):
            name = name[len(root):]
    return name

unity_source = rule(
    implementation = _unity_source_impl,
    attrs = {"srcs": attr.label_list(allow_files = [".cc"], mandatory = True)},
    doc = "The file NAME, which includes `srcs` in their order.",
)

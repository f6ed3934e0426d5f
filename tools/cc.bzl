"""cc_binary, cc_library and cc_test of this repository, and verbena_cc_library.

They add a precompiled header of other projects' headers (tools/pch), unless a target says
`precompiled = False`. Load them from here. Examples load none, so that users can copy them.
"""

# Only in this workspace: a project that depends on Verbena need not install the packages of all
# precompiled headers.
_HERE = not Label("//tools/pch:used").workspace_root

def _precompiled(kwargs):
    """The arguments of a target, with the precompiled header among them."""
    arguments = dict(kwargs)
    if not arguments.pop("precompiled", True) or not _HERE:
        return arguments
    arguments["copts"] = arguments.get("copts", []) + select({
        "//tools/pch:used": ["-include-pch", "$(BINDIR)/tools/pch/common_headers.pch"],
        "//conditions:default": [],
    })
    arguments["deps"] = arguments.get("deps", []) + select({
        "//tools/pch:used": ["//tools/pch:common"],
        "//conditions:default": [],
    })
    return arguments

def cc_library(**kwargs):
    native.cc_library(**_precompiled(kwargs))

def cc_binary(**kwargs):
    native.cc_binary(**_precompiled(kwargs))

def cc_test(**kwargs):
    native.cc_test(**_precompiled(kwargs))

def verbena_cc_library(name, hdrs = [], srcs = [], features = [], **kwargs):
    """cc_library with the one include path that users see, in Bazel and when installed.

    Args:
      name: the target's name.
      hdrs: headers, included as "verbena/<package>/<header>".
      srcs: sources. clang-format puts the header of a source's own name first, so compiling the
        source shows that this header compiles alone.
      features: as in cc_library.
      **kwargs: passed to cc_library.
    """
    sources = [source[:-len(".cc")] for source in srcs if source.endswith(".cc")]
    alone = [header for header in hdrs if header[:-len(".h")] not in sources]
    cc_library(
        name = name,
        hdrs = hdrs,
        srcs = srcs,
        features = features if alone else features + ["-parse_headers"],
        include_prefix = "verbena/" + native.package_name(),
        strip_include_prefix = "/" + native.package_name(),
        **kwargs
    )

"""cc_binary, cc_library and cc_test of this repository; verbena_cc_library, a library; verbena_folder, that of a folder.

They add a precompiled header of other projects' headers (tools/pch), unless a target says
`precompiled = False`. Load them from here. Examples load none, so that users can copy them.

A verbena_cc_library compiles its sources together, as one translation unit (tools/unity): parsing the
headers that they share takes most of the time of compiling them. So names in the unnamed namespaces of
one library's sources differ.
"""

load("//tools:folders.bzl", "FOLDERS", "LIBRARIES")
load("//tools/unity:unity.bzl", "unity_source")

# Sources of one translation unit: more would leave a core idle while the other compiles the last.
_TOGETHER = 16

# Tests see the headers of GoogleTest precompiled, too. A project that depends on Verbena builds none
# of them, so it need not have GoogleTest.
_ROOT = Label("//tools/pch:used").workspace_root
_PCH = "$(BINDIR)/%stools/pch/%%s_headers.pch" % (_ROOT + "/" if _ROOT else "")

def _precompiled(kwargs):
    """The arguments of a target, with the precompiled header among them."""
    arguments = dict(kwargs)
    if not arguments.pop("precompiled", True):
        return arguments
    headers = "test" if native.package_name().split("/")[0] == "tests" else "common"
    arguments["copts"] = arguments.get("copts", []) + _if_used(["-include-pch", _PCH % headers])
    arguments["deps"] = arguments.get("deps", []) + _if_used(["//tools/pch:" + headers])
    return arguments

def _if_used(words):
    return select({
        "//tools/pch:used" + ("_outside" if _ROOT else ""): words,
        "//conditions:default": [],
    })

def together(name, srcs, units = 0):
    """The arguments of a library that compiles `srcs` as `units` translation units, or as few (0)."""
    sources = [source for source in srcs if source.endswith(".cc")]
    if len(sources) < 2:
        return {"srcs": srcs}
    unity = []
    count = units or (len(sources) + _TOGETHER - 1) // _TOGETHER
    for i in range(count):
        unit = "%s_unity_%d.cc" % (name, i)
        unity_source(name = unit, srcs = sources[i * len(sources) // count:(i + 1) * len(sources) // count])
        unity.append(unit)
    others = [source for source in srcs if not source.endswith(".cc")]
    return {
        "srcs": others + select({
            "//tools/unity:used": unity,
            "//conditions:default": sources,
        }),
        "textual_hdrs": select({
            "//tools/unity:used": sources,
            "//conditions:default": [],
        }),
    }

def cc_library(**kwargs):
    native.cc_library(**_precompiled(kwargs))

def cc_binary(**kwargs):
    native.cc_binary(**_precompiled(kwargs))

def cc_test(**kwargs):
    native.cc_test(**_precompiled(kwargs))

def verbena_cc_library(name, hdrs = [], srcs = [], features = [], units = 0, **kwargs):
    """cc_library with the one include path that users see, in Bazel and when installed.

    Args:
      name: the target's name.
      hdrs: headers, included as "verbena/<package>/<header>".
      srcs: sources. clang-format puts the header of a source's own name first, so compiling the
        source by itself, as ./dev lint does, shows that this header compiles alone.
      features: as in cc_library.
      units: how many translation units `srcs` are; 0: as few as keep both cores busy. Functions of one are
        inlined into each other, so a folder that every call runs through may ask for one.
      **kwargs: passed to cc_library.
    """
    sources = [source[:-len(".cc")] for source in srcs if source.endswith(".cc")]
    alone = [header for header in hdrs if header[:-len(".h")] not in sources]
    cc_library(
        name = name,
        hdrs = hdrs,
        features = features if alone else features + ["-parse_headers"],
        include_prefix = "verbena/" + native.package_name(),
        strip_include_prefix = "/" + native.package_name(),
        **dict(kwargs, **together(name, srcs, units))
    )

# Folders whose library has another name than theirs.
_TARGETS = {
    "rpc": ["//rpc:api"],
    "proto": [],  # each message has a target, which its users name
}

# Folders that programs do not link with //rpc.
_APART = ["transport/preload", "rpc/admin", "rpc/codegen", "rpc/naming/etcd", "rpc/reflection"] + [
    "rpc/testing",
]

# All of the product, for programs and tests that look at it from everywhere.
PRODUCT = ["//rpc", "@absl", "@fmt", "@rdma//:ibverbs"] + [
    "//" + folder
    for folder in FOLDERS
    if folder.split("/")[0] in ["transport", "rpc"] and "/" in folder and folder not in _APART
]

def folder_deps(folder):
    """What the table of folders.bzl lets `folder` use, as dependencies.

    Args:
      folder: a folder of the table.
    """
    if folder not in FOLDERS:
        fail("//%s is in no row of tools/folders.bzl: add one that says what it may use" % folder)
    deps = ["@absl", "@fmt"]
    for used in FOLDERS[folder]:
        deps += _TARGETS.get(used, ["//" + used])
    for _, targets, folders in LIBRARIES.values():
        if [each for each in folders if (folder + "/").startswith(each + "/")]:
            deps += targets
    return deps

def verbena_folder(deps = [], **kwargs):
    """The library of a folder, of its name: all headers and sources, and what the table lets it use.

    A folder below rpc/ has nothing that programs include, so programs cannot depend on it.

    Args:
      deps: what it depends on besides.
      **kwargs: passed to verbena_cc_library.
    """
    folder = native.package_name()
    inside = ["//%s:__subpackages__" % each for each in ["benchmarks", "rpc", "tests", "tools/verbena"]]
    verbena_cc_library(
        name = folder.split("/")[-1],
        srcs = native.glob(["*.cc"]),
        hdrs = native.glob(["*.h"]),
        visibility = inside if folder.startswith("rpc/") else ["//visibility:public"],
        deps = folder_deps(folder) + deps,
        **kwargs
    )

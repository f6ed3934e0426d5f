"""Tests of this repository: verbena_tests, all those of a folder, verbena_test, one that stands alone.

Parsing and instantiating what tests include takes most of the time of compiling them, and each program
takes its time to link. So a folder's tests are few translation units and one program. Each test stays a
target of its own: a name for that program, which then has the cases of the source of that name alone
(tests/support/named_main.cc). The names of a source lie in a namespace that has the source's name.

No tag says that a test has threads, processes or time: ./dev test --racy reads that from its sources.
"""

load("//tools:cc.bzl", "PRODUCT", "cc_binary", "cc_library", "cc_test", "folder_deps", "together")
load("//tools:proto.bzl", "verbena_proto_library")
load("//tools/unity:unity.bzl", "unity_source")

# Sources of one translation unit. Larger units slow the build of one changed test, smaller ones that of all.
_TOGETHER = 8

def _tested():
    """What each test of this package may use: below tests/rpc/ the whole product, below tests/transport/ the folder
    that it mirrors and what that may use."""
    folder = native.package_name()[len("tests/"):]
    if folder == "rpc" or (folder.startswith("rpc/") and folder != "rpc/codegen"):
        return PRODUCT + ["//rpc/testing"]
    if folder.startswith("transport/") and folder != "transport/preload":
        return ["//" + folder] + folder_deps(folder)
    return ["@absl", "@fmt"]

def _with(deps):
    """`deps`, and each of _tested() that is not among them."""
    return deps + [dep for dep in _tested() if dep not in deps]

def _nearest(name, names):
    """Of `names` that which begins most as `name` does."""
    best = ("", -1)
    for each in names:
        common = [i for i in range(min(len(each), len(name))) if each[:i + 1] == name[:i + 1]]
        if len(common) > best[1]:
            best = (each, len(common))
    return best[0]

def verbena_test_support(deps = [], protos = {}, apart = [], **kwargs):
    """The library `support` of a folder of tests: its headers, and those of its sources that are no tests.

    The sources are compiled together, so names in their unnamed namespaces differ.

    Args:
      deps: what it uses besides the folder that it mirrors.
      protos: the .proto files of the folder, by name, each with the names of those that it imports. Each is also a
        library of its own.
      apart: files of other targets.
      **kwargs: passed to cc_library.
    """
    for name, imported in protos.items():
        verbena_proto_library(
            name = name,
            testonly = True,
            srcs = [name + ".proto"],
            visibility = ["//tests:__subpackages__"],
            deps = ["//proto:options_proto", "//proto:remote_memory_proto"] +
                   [":%s_proto" % each for each in imported],
        )
    cc_library(
        name = "support",
        testonly = True,
        hdrs = native.glob(["*.h"], exclude = apart),
        visibility = ["//tests:__subpackages__"],
        deps = _with(deps + [":" + name for name in protos] + ["@gtest"]),
        **dict(kwargs, **together("support", native.glob(["*.cc"], exclude = ["*_test.cc"] + apart)))
    )

def verbena_test(name, srcs = None, size = "medium", deps = [], **kwargs):
    """A test with GoogleTest, in the file of its name, that is a program of its own.

    Args:
      name: the target's name, <what>_test.
      srcs: sources, if they are others than <name>.cc; none if a library in deps has the cases.
      size: as in cc_test.
      deps: what it uses besides the folder that it mirrors.
      **kwargs: passed to cc_test.
    """
    cc_test(
        name = name,
        size = size,
        srcs = [name + ".cc"] if srcs == None else srcs,
        deps = _with(deps + ["@gtest//:gtest_main"]),
        **kwargs
    )

def verbena_tests(tags = {}, deps = []):
    """Each *_test.cc of a folder that no target above takes, compiled and linked together.

    Args:
      tags: the tags of tests, by the test's name.
      deps: what the tests use besides the folder that they mirror, all together.
    """
    taken = [
        source
        for rule in native.existing_rules().values()
        if rule["kind"] != "cc_library"
        for source in rule.get("srcs", [])
    ]
    sources = [source for source in native.glob(["*_test.cc"]) if ":" + source not in taken]
    for name in tags:
        if name + ".cc" not in sources:
            fail("tags names '%s', but verbena_tests() takes no %s.cc: there is none, or a rule above takes it; did you mean '%s'?" %
                 (name, name, _nearest(name, [source[:-len(".cc")] for source in sources])))
    units = []
    for start in range(0, len(sources), _TOGETHER):
        unit = "tests_unity_%d.cc" % (start // _TOGETHER)
        unity_source(name = unit, srcs = sources[start:start + _TOGETHER])
        units.append(unit)
    cc_library(
        name = "test_cases",
        testonly = True,
        srcs = select({
            "//tools/unity:used": units,
            "//conditions:default": sources,
        }),
        textual_hdrs = select({
            "//tools/unity:used": sources,
            "//conditions:default": [],
        }),
        alwayslink = True,
        visibility = ["//visibility:private"],
        deps = _with(deps + ["@gtest"]),
    )
    cc_binary(
        name = "tests",
        testonly = True,
        visibility = ["//visibility:private"],
        deps = [
            ":test_cases",
            "//tests/support:named_main",
        ],
    )
    for source in sources:
        name = source[:-len(".cc")]
        native.sh_test(
            name = name,
            size = "medium",
            srcs = [":tests"],
            data = [":tests"],
            tags = tags.get(name, []),
        )

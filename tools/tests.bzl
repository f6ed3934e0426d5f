"""verbena_tests: tests of a folder that are compiled and linked together.

Parsing and instantiating what tests include takes most of the time of compiling them, and each program
takes its time to link. So a folder's tests are few translation units and one program. Each test stays a
target of its own: a name for that program, which then has the cases of the source of that name alone
(tests/support/named_main.cc). The names of a source lie in a namespace that is called as the source.
"""

load("//tools:cc.bzl", "cc_binary", "cc_library")
load("//tools/unity:unity.bzl", "unity_source")

# Sources of one translation unit. Larger units slow the build of one changed test, smaller ones that of all.
_TOGETHER = 8

def verbena_tests(tests, deps, sizes = {}):
    """Tests in the files of their names.

    Args:
      tests: to the name of each test, <what>_test, its tags. Tags say threads, processes or time if it uses these.
      deps: what the tests of the folder use, all together.
      sizes: to the name of a test its size, if that is not small: small ones end within a minute.
    """
    names = sorted(tests)
    for name in sizes:
        if name not in tests:
            fail("sizes names '%s', which is no test here" % name)
    sources = [name + ".cc" for name in names]
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
        deps = deps + ["@gtest//:gtest"],
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
    for name in names:
        native.sh_test(
            name = name,
            size = sizes.get(name, "small"),
            srcs = [":tests"],
            data = [":tests"],
            tags = tests[name],
        )

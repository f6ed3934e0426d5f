"""fuzz_target: a libFuzzer program, and a test that replays its corpus without libFuzzer."""

load("//tools:cc.bzl", "cc_binary", "cc_library", "cc_test")

def fuzz_target(name, deps):
    """<name>_fuzz.cc defines LLVMFuzzerTestOneInput(); corpus/<name> holds inputs.

    Args:
      name: `./dev fuzz` knows the target by it.
      deps: of the source.
    """
    cc_library(
        name = name + "_input",
        testonly = True,
        srcs = [name + "_fuzz.cc"],
        deps = deps,
        alwayslink = True,
    )

    # Built by --config=fuzz alone, which instruments what it tests.
    cc_binary(
        name = name + "_fuzz",
        testonly = True,
        linkopts = ["-fsanitize=fuzzer"],
        tags = ["manual"],
        deps = [":" + name + "_input"],
    )
    cc_test(
        name = name + "_corpus_test",
        size = "small",
        srcs = ["replay_test.cc"],
        data = native.glob(["corpus/%s/*" % name]),
        local_defines = ['VERBENA_CORPUS=\\"%s/corpus/%s\\"' % (native.package_name(), name)],
        deps = [
            ":" + name + "_input",
            "@gtest//:gtest_main",
        ],
    )

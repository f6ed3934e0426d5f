"""verbena_cc_library: a cc_library whose headers are included as verbena/<package>/<header>."""

def verbena_cc_library(name, hdrs = [], srcs = [], features = [], **kwargs):
    """cc_library with the one include path that users see, in Bazel and when installed.

    Args:
      name: the target's name.
      hdrs: headers, included as "verbena/<package>/<header>".
      srcs: sources. A source includes the header of its name first, as clang-format orders it, so
        that compiling the one shows that the other needs no more.
      features: as in cc_library.
      **kwargs: passed to cc_library.
    """
    sources = [source[:-len(".cc")] for source in srcs if source.endswith(".cc")]
    alone = [header for header in hdrs if header[:-len(".h")] not in sources]
    native.cc_library(
        name = name,
        hdrs = hdrs,
        srcs = srcs,
        features = features if alone else features + ["-parse_headers"],
        include_prefix = "verbena/" + native.package_name(),
        strip_include_prefix = "/" + native.package_name(),
        **kwargs
    )

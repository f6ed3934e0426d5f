"""verbena_cc_library: a cc_library whose headers are included as verbena/<package>/<header>."""

def verbena_cc_library(name, hdrs = [], **kwargs):
    """cc_library with the one include path that users see, in Bazel and when installed.

    Args:
      name: the target's name.
      hdrs: headers, included as "verbena/<package>/<header>".
      **kwargs: passed to cc_library.
    """
    native.cc_library(
        name = name,
        hdrs = hdrs,
        include_prefix = "verbena/" + native.package_name(),
        strip_include_prefix = "/" + native.package_name(),
        **kwargs
    )

"""Debian's libraries as Bazel repositories. Nothing is downloaded: a missing package is named."""

_INCLUDE = ["/usr/include", "/usr/include/x86_64-linux-gnu", "/usr/include/aarch64-linux-gnu"]
_LIB = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"]

def _find(rctx, dirs, names, what):
    for name in names:
        for directory in dirs:
            if rctx.path(directory + "/" + name).exists:
                return directory + "/" + name
    fail("%s: system %s %s not found; run: ./dev install-deps (or apt-get install %s)" %
         (rctx.name, what, names[0], rctx.attr.deb))

def _package_stamp(rctx):
    # System headers are outside Bazel's inputs, so an upgraded package would leave stale objects:
    # its version goes into a define, which re-keys every compile that depends on it.
    if not rctx.which("dpkg-query"):
        return "unknown"
    result = rctx.execute(["dpkg-query", "-W", "-f=${Version}_"] + rctx.attr.deb.split(" "))
    if result.return_code != 0:
        return "unknown"
    return "".join([c if c.isalnum() else "_" for c in result.stdout.elems()])

def _pkg_config_libs(rctx):
    if not rctx.attr.pkg_config:
        return ""
    result = rctx.execute(["pkg-config", "--libs"] + rctx.attr.pkg_config)
    if result.return_code != 0:
        fail("%s: pkg-config failed: %s; run: ./dev install-deps (or apt-get install %s pkg-config)" %
             (rctx.name, result.stderr, rctx.attr.deb))
    return ", ".join(['"%s"' % flag for flag in result.stdout.strip().split(" ") if flag])

def _impl(rctx):
    for header in rctx.attr.hdrs:
        _find(rctx, _INCLUDE, [header], "header")
    for lib in rctx.attr.libs:
        _find(rctx, _LIB, ["lib%s.so" % lib, "lib%s.a" % lib], "library")
    for tool in rctx.attr.tools:
        path = rctx.which(tool)
        if not path:
            fail("%s: tool %s not found; run: ./dev install-deps (or apt-get install %s)" %
                 (rctx.name, tool, rctx.attr.deb))
        rctx.symlink(path, "bin/" + tool)
    for directory in rctx.attr.data_dirs:
        rctx.symlink(_find(rctx, _INCLUDE, [directory], "directory"), "include/" + directory)
    rctx.template("BUILD.bazel", rctx.attr.build_file, {
        "%{stamp}": "SYSLIB_%s=v%s" % (rctx.name.upper(), _package_stamp(rctx)),
        "%{pkg_config_libs}": _pkg_config_libs(rctx),
    })

system_library = repository_rule(
    implementation = _impl,
    attrs = {
        "build_file": attr.label(mandatory = True, allow_single_file = True),
        "data_dirs": attr.string_list(doc = "Below the include directories, linked into include/."),
        "deb": attr.string(mandatory = True, doc = "Debian packages, space separated."),
        "hdrs": attr.string_list(doc = "Headers that must be there."),
        "libs": attr.string_list(doc = "Libraries that must be there."),
        "pkg_config": attr.string_list(doc = "pkg-config modules that give the link line."),
        "tools": attr.string_list(doc = "Programs on PATH, linked into bin/."),
    },
    local = True,
    configure = True,
    environ = ["PATH"],
)

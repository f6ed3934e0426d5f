"""precompiled_header: headers that the compiler parses once for all sources that include them."""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

# The main header, which declares nothing. A precompiled header stores the absolute path of its main
# header, so a header of this repository would not do: each sandbox has another path. The headers
# that count come by -include.
_MAIN = "/usr/include/stdc-predef.h"

def _precompiled_header_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features + [
            "layering_check",
            "module_maps",
            "parse_headers",
        ],
    )
    headers = cc_common.merge_cc_infos(
        cc_infos = [dep[CcInfo] for dep in ctx.attr.deps],
    ).compilation_context
    output = ctx.actions.declare_file(ctx.label.name + ".pch")
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = toolchain,
        source_file = _MAIN,
        output_file = output.path,
        include_directories = headers.includes,
        quote_include_directories = headers.quote_includes,
        system_include_directories = headers.system_includes,
        preprocessor_defines = headers.defines,
        use_pic = True,
        user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + [
            "-x",
            "c++-header",
            # As in sources with layering_check, or the compiler refuses them.
            "-fmodules-strict-decluse",
            # The templates that they instantiate are instantiated here, once.
            "-fpch-instantiate-templates",
            # The same headers always give the same bytes.
            "-Xclang",
            "-fno-pch-timestamp",
        ] + ["-include" + name for name in ctx.attr.headers],
    )
    ctx.actions.run(
        executable = cc_common.get_tool_for_action(
            feature_configuration = features,
            action_name = "c++-compile",
        ),
        arguments = cc_common.get_memory_inefficient_command_line(
            feature_configuration = features,
            action_name = "c++-compile",
            variables = variables,
        ),
        env = cc_common.get_environment_variables(
            feature_configuration = features,
            action_name = "c++-compile",
            variables = variables,
        ),
        inputs = depset(transitive = [headers.headers, toolchain.all_files]),
        outputs = [output],
        mnemonic = "PrecompileHeader",
        progress_message = "Precompiling headers of %s" % ctx.label,
    )
    return [DefaultInfo(files = depset([output]))]

precompiled_header = rule(
    implementation = _precompiled_header_impl,
    attrs = {
        "headers": attr.string_list(mandatory = True),
        "deps": attr.label_list(providers = [CcInfo]),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    doc = "NAME.pch, of `headers` and all that they include, for sources that are compiled alike: " +
          "position-independent, in the same mode and with the same sanitizers.",
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

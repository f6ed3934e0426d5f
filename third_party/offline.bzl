"""verbena_offline_rules(): what Bazel itself would download, as in-tree stubs."""

_RULES = ["remote_coverage_tools", "rules_cc", "rules_java", "rules_proto"]

def _stub_impl(rctx):
    stubs = rctx.path(Label("@verbena//third_party:BUILD")).dirname.get_child("stubs")
    for entry in stubs.get_child(rctx.name).readdir():
        rctx.symlink(entry, entry.basename)

_stub = repository_rule(implementation = _stub_impl, local = True)

def verbena_offline_rules():
    """Pins what Bazel's own WORKSPACE suffix would otherwise fetch: a definition made here wins.

    Not for workspaces that bring their own rules_cc, rules_java or rules_proto.
    """
    for name in _RULES:
        _stub(name = name)

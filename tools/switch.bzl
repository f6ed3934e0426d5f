"""switch: a choice of the command line, such as --//tools/pch:use=false."""

def _switch_impl(_):
    return []

switch = rule(
    implementation = _switch_impl,
    build_setting = config.bool(flag = True),
)

"""Refuses awaits that gcc runs though the expression around them does not ask for them.

g++ 13 to 16 run a co_await behind &&, || or ?: in any case if the expression stands in the condition of a loop, is
assigned, or is an argument of a call, depending on the types: while (more && (co_await Sleep(…)).ok()). The condition
of an if, an initialisation and a co_return are compiled right. clang compiles all of them right.
"""

import re

import errors

_AWAIT = re.compile(r"\bco_await\b")
_MAYBE = re.compile(r"&&|\|\||\?")
_CONTROL = re.compile(r"\s*(?:else\s+)?(while|for|if)\b\s*(?:constexpr\s*)?\(")
# Up to the value: of a declaration, of a macro that declares or returns, of a return.
_RIGHT = re.compile(r"\s*(?:(?:const\s+)?[\w:]+(?:<.*>)?[\s&*]+\w+\s*=|(?:VERBENA_CO_\w+|co_return)\b)")


def is_checked(name):
    """Whether gcc may compile the file `name`."""
    return name.endswith((".h", ".cc", ".cc.in", ".h.in"))


def _end_of(code, start):
    """Where the parenthesis at `start` closes."""
    depth = 0
    for at in range(start, len(code)):
        depth += {"(": 1, ")": -1}.get(code[at], 0)
        if depth == 0:
            return at
    return len(code)


def _is_wrong(code, begin, at):
    """Whether gcc runs the co_await at `at`, of the statement that begins at `begin`, in any case."""
    while (control := _CONTROL.match(code, begin)) and control.end() <= at:
        end = _end_of(code, control.end() - 1)
        if at < end:
            before = code[control.end():at]
            return control.group(1) != "if" and bool(_MAYBE.search(before.rsplit(";", 1)[-1]))
        begin = end + 1
    before = code[begin:at]
    if not _MAYBE.search(before):
        return False
    return not _RIGHT.match(before)


def _headers(code):
    """Where the parentheses of each for begin and end: semicolons there end no statement."""
    return [(found.end() - 1, _end_of(code, found.end() - 1)) for found in re.finditer(r"\bfor\s*\(", code)]


def _statement_of(code, at, headers):
    """Where the statement of the co_await at `at` begins."""
    for begin in range(at - 1, -1, -1):
        if code[begin] in "{}" or code[begin] == ";" and not any(first < begin < last for first, last in headers):
            return begin + 1
    return 0


def check(name, text):
    """Messages about the awaits of the file `name`, with content `text`, that gcc runs in any case."""
    if not is_checked(name):
        return []
    code = errors.without_comments(text)
    headers = _headers(code)
    return [f"{name}:{code.count(chr(10), 0, found.start()) + 1}: gcc runs this await behind &&, || or ? in any case: "
            "await in a statement of its own"
            for found in _AWAIT.finditer(code) if _is_wrong(code, _statement_of(code, found.start(), headers), found.start())]

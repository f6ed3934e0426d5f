"""Refuses awaits that gcc runs though the condition of their loop does not ask for them.

g++ 13 to 16 evaluate a co_await behind &&, || or ?: in the condition of a loop in any case, if the
awaited result is a temporary with a destructor: while (more && (co_await Sleep(…)).ok()). An if and
other statements are compiled right. clang compiles all of them right.
"""

import re

import errors

_LOOP = re.compile(r"\b(while|for)\s*(?=\()")
_MAYBE = re.compile(r"(?:&&|\|\||\?).*\bco_await\b", re.DOTALL)


def is_checked(name):
    """Whether gcc may compile the file `name`."""
    return name.endswith((".h", ".cc", ".cc.in", ".h.in"))


def _in_parentheses(code, start):
    """What the parentheses at `start` hold; all the rest if nobody closes them."""
    depth = 0
    for at in range(start, len(code)):
        depth += {"(": 1, ")": -1}.get(code[at], 0)
        if depth == 0:
            return code[start + 1:at]
    return code[start + 1:]


def check(name, text):
    """Messages about the loops of the file `name`, with content `text`, that await so."""
    if not is_checked(name):
        return []
    code = errors.without_comments(text)
    found = []
    for loop in _LOOP.finditer(code):
        condition = _in_parentheses(code, loop.end())
        if loop.group(1) == "for":  # a range may be awaited: it is evaluated once
            condition = (condition.split(";") + ["", ""])[1]
        if _MAYBE.search(condition):
            line = code.count("\n", 0, loop.start()) + 1
            found.append(f"{name}:{line}: gcc runs an await behind &&, || or ? in a loop's condition in any case: "
                         "await in the body")
    return found

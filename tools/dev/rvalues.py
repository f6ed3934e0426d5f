"""Refuses coroutines that take a parameter by rvalue reference.

A coroutine keeps the reference, not the value. It begins when it is awaited or spawned, and goes on after each await:
by then the temporary may be gone. clang warns at a call that passes a temporary to a Task which is kept. It says
nothing if the Task is handed on at once, as in Spawn(Send(std::move(block))). A parameter by value is moved into the
coroutine. A member function for rvalues (&& behind its parameters) has such a reference to its object.

Lines between // NOLINTBEGIN(rvalues) and // NOLINTEND(rvalues) are left alone.
"""

import re

import errors

_RUNS = re.compile(r"(?<!operator )\bco_(?:await|yield|return)\b")
_FREE = re.compile(r"// NOLINTBEGIN\(rvalues\).*?// NOLINTEND\(rvalues\)", re.DOTALL)
_BLOCK = re.compile(r"\s*(?:(?:else|do|try)\s*$|(?:else\s+)?(?:if|for|while|switch|catch)\b)")
# What may stand between the parameters of a function and its body.
_BEHIND = re.compile(r"(?:\s|\b(?:const|noexcept|mutable|override|final|static|volatile)\b|&&?|"
                     r"->\s*[\w:<>,\s*&().\[\]]+?|\brequires\b[^{}]*|\[\[[^\]]*\]\]|\b[A-Z_]+\b)*$")
_CONDITION = re.compile(r"\b(?:noexcept|requires|decltype|alignas|__attribute__)$|(?:&&|\|\|)$")


def is_checked(name):
    """Whether the file `name` may have coroutines of Verbena's."""
    return name.endswith((".h", ".cc", ".cc.in", ".h.in"))


def _opened(code, close):
    """Where the parenthesis that closes at `close` opens; -1: nowhere."""
    depth = 0
    for at in range(close, -1, -1):
        depth += {")": 1, "(": -1}.get(code[at], 0)
        if depth == 0:
            return at
    return -1


def _header(code, brace):
    """Where the text that leads to the brace at `brace` begins."""
    depth = 0
    for at in range(brace - 1, -1, -1):
        if code[at] in ")]":
            depth += 1
        elif code[at] in "([":
            if depth == 0:
                return at + 1
            depth -= 1
        elif depth == 0 and code[at] in ";{}":
            return at + 1
    return 0


def _parameters(code, begin, brace):
    """(where they open, where they close) of the function whose body opens at `brace`; None: it is no function."""
    if _BLOCK.match(code[begin:brace]):
        return None
    end = brace
    for close in range(brace - 1, begin - 1, -1):
        if close < end and code[close] == ")" and _BEHIND.match(code[close + 1:end]):
            opened = _opened(code, close)
            before = code[begin:opened].rstrip()
            # A condition behind the parameters is none of them.
            if condition := _CONDITION.search(before):
                end = begin + condition.start()
                continue
            return (opened, close) if re.search(r"[\w\]>)]$", before) else None
    return None


def _braces(code):
    """To each brace that opens where it closes."""
    open_at, closes = [], {}
    for found in re.finditer(r"[{}]", code):
        if found.group() == "{":
            open_at.append(found.start())
        elif open_at:
            closes[open_at.pop()] = found.start()
    return closes


def _split(text):
    """Parameters, without what they have in brackets."""
    depth, plain = 0, ""
    for character in text:
        if character in "<([{":
            depth += 1
        if depth == 0:
            plain += character
        if character in ">)]}":
            depth -= 1
    return plain.split(",")


def check(name, text):
    """Messages about the coroutines of the file `name`, with content `text`, that take rvalue references."""
    if not is_checked(name):
        return []
    code = errors.without_comments(_FREE.sub(lambda free: "\n" * free.group().count("\n"), text))
    functions = [(brace, closes, parameters) for brace, closes in _braces(code).items()
                 if (parameters := _parameters(code, _header(code, brace), brace)) is not None]
    found = set()
    for run in _RUNS.finditer(code):
        around = [each for each in functions if each[0] < run.start() < each[1]]
        if around:
            found.add(max(around))
    messages = []
    for brace, _, (opened, closed) in sorted(found):
        place = f"{name}:{code.count(chr(10), 0, opened) + 1}: this coroutine "
        messages += [f"{place}takes an rvalue reference, which dangles after its caller's statement: take "
                     f"'{' '.join(each.split())}' by value"
                     for each in _split(code[opened + 1:closed]) if "&&" in each.split("=")[0]]
        if re.match(r"\s*(?:const\s*)?&&", code[closed + 1:brace]):
            messages.append(f"{place}is a member for rvalues, and its object may be gone after its caller's statement: "
                            "move the object into a static coroutine")
    return messages

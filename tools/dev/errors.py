"""Refuses errors that rpc/ and transport/ return with an if instead of by the macros.

transport/base/status.h has a macro for each case. If errors are always handed on in one way,
a reader can skip these places, and notices those that do more.
"""

import re

_CHECKED = ("rpc/", "transport/")
_MACROS = "transport/base/status.h"

# The plugin of protoc is a program of its own, which does not link transport/.
_FREE = ("rpc/codegen/", _MACROS)

# Comments go, strings lose their content. Both keep their lines.
_NOT_CODE = re.compile(
    r'R"(\w*)\(.*?\)\1"|"(?:[^"\\\n]|\\.)*"|(?<!\w)\'(?:[^\'\\\n]|\\.)*\'|//[^\n]*|/\*.*?\*/',
    re.DOTALL)

# A return of the error that `{error}` names, and of nothing else.
_RETURN = (r"\)\s*\{{?\s*(?:co_return|return)\s+(?:std::move\(\s*{error}\s*\)|{error})"
           r"(?:\.status\(\))?\s*;")
_TESTED = re.compile(r"\bif\s*\(\s*!\s*(?P<error>[\w:.()*\[\]]+?(?:->[\w:.()*\[\]]+?)*)\.ok\(\)"
                     r"\s*" + _RETURN.format(error=r"(?P=error)"))
_DECLARED = re.compile(r"\bif\s*\((?:[^;{}()]|\(\s*\))*?\b(?P<error>\w+)\s*(?:=|\(|\{)[^;]*;"
                       r"\s*!\s*(?P=error)\.ok\(\)\s*" + _RETURN.format(error=r"(?P=error)"))


def _without_contents(match):
    text = match.group()
    return ('""' if text[0] in "R\"'" else "") + "\n" * text.count("\n")


def without_comments(text):
    """`text` without its comments and without what its strings hold; lines stay."""
    return _NOT_CODE.sub(_without_contents, text)


def is_checked(name):
    """Whether the file `name` has to use the macros."""
    return (name.startswith(_CHECKED) and not name.startswith(_FREE)
            and name.endswith((".h", ".cc")))


def check(name, text):
    """Messages about the places where the file `name`, with content `text`, breaks the rule."""
    if not is_checked(name):
        return []
    code = without_comments(text)
    found = {(code.count("\n", 0, match.start()) + 1, match.group("error"))
             for pattern in (_TESTED, _DECLARED) for match in pattern.finditer(code)}
    return [f"{name}:{line}: hand '{error}' on by a macro of {_MACROS}"
            for line, error in sorted(found)]

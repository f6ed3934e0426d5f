"""Refuses comments and test names that begin with a headless clause or a pronoun.

Such a beginning ("What the peer holds", "That of a request", "It is closed") has to be read twice.
A test file also has to open with a comment, or a docstring: it says what the tests prove.
"""

import os
import re

WORDS = ("What", "Who", "Where", "That", "Those", "Of", "It")
_WORD = "|".join(WORDS)

_C_LIKE = (".h", ".cc", ".proto")
_HASH = (".py", ".sh", ".bzl", ".BUILD", ".bazelrc")
_HASH_NAMES = ("BUILD", "WORKSPACE", "dev", "init", ".bazelrc", ".clang-tidy", ".clang-format",
               ".editorconfig", "packages.txt")
_NOT_OURS = ("third_party/stubs/", "tests/rpc/codegen/testdata/")

# How a test file opens, by the end of its name.
_SCRIPT = r"(?:#!.*\n|(?!#!))"
_OPENINGS = {"_test.cc": r"//+ *\w", "_cases.cc": r"//+ *\w",
             "_test.py": _SCRIPT + r'r?"""\S', "_test.sh": _SCRIPT + r"# *\S"}
_FIRST_WORD = re.compile(rf"(?:{_WORD})\b")
_TEST = re.compile(rf"\bTEST(?:_[FP])?\(\s*\w+,\s*((?:{_WORD})(?![a-z])\w*)")
_PYTHON_TEST = re.compile(rf"^\s*(?:async )?def (test_(?:{_WORD.lower()})(?:_\w*)?)\(", re.MULTILINE)
_DOCSTRING = re.compile(rf'^[ \t]*(?:r?""")[ \t]*((?:{_WORD})\b.*)', re.MULTILINE)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"|(?<!\w)\'(?:[^\'\\]|\\.)*\'')
_RAW_STRING = re.compile(r'R"(\w*)\(.*?\)\1"', re.DOTALL)
_PYTHON_STRING = re.compile(r'("""|\'\'\').*?\1', re.DOTALL)


def _without_contents(match):
    # Keeps the lines of a string of several lines, so that later lines keep their numbers.
    return '""' + "\n" * match.group().count("\n")


def _marker(name):
    """How a line of comment begins in the file `name`, or None if prose is not checked there."""
    if name.startswith(_NOT_OURS):
        return None
    name = name.removesuffix(".in")  # a template
    if name.endswith(_C_LIKE):
        return "//"
    if name.endswith(_HASH) or os.path.basename(name) in _HASH_NAMES:
        return "#"
    return None


def is_checked(name):
    """Whether the file `name` is of a kind whose comments are checked."""
    return _marker(name) is not None


def _comments(text, marker):
    """(line, text) of the first line of each block of comment and of each trailing comment."""
    above = -1  # where the comment of the line above begins
    alone = False  # and whether it fills that line
    for number, line in enumerate(text.splitlines(), 1):
        if number == 1 and line.startswith("#!"):  # names an interpreter
            continue
        at = _STRING.sub(lambda match: "_" * len(match.group()), line).find(marker)
        # In shell "$#" and "${x#y}" are no comments.
        if at > 0 and marker == "#" and not line[at - 1].isspace():
            at = -1
        fills = at >= 0 and not line[:at].strip()
        # A comment behind code goes on in lines that begin below it.
        goes_on = fills and above >= 0 and (alone or above == at)
        if at >= 0 and not goes_on:
            yield number, line[at:].lstrip("/#! ")
        above, alone = at, fills


def check(name, text):
    """A list of messages: where the file `name`, whose content is `text`, breaks a rule."""
    marker = _marker(name)
    if marker is None:
        return []
    found = []
    messages = []
    for end, opening in _OPENINGS.items():
        if name.endswith(end) and not re.match(opening, text):
            messages.append(f"{name}:1: open the file with a comment that says what its tests prove")
    if marker == "//":
        for match in _TEST.finditer(text):
            found.append((text.count("\n", 0, match.start()) + 1, match.group(1)))
        text = _RAW_STRING.sub(_without_contents, text)
    if name.endswith((".py", ".bzl")):
        names = _PYTHON_TEST.finditer(text) if name.endswith("_test.py") else ()
        for match in [*names, *_DOCSTRING.finditer(text)]:
            found.append((text.count("\n", 0, match.start(1)) + 1, match.group(1)))
        text = _PYTHON_STRING.sub(_without_contents, text)
    found += [(number, comment) for number, comment in _comments(text, marker)
              if _FIRST_WORD.match(comment)]
    messages += [f"{name}:{number}: name who acts instead of beginning with a word such as "
                 f"'{_begin(start)}': {start}" for number, start in sorted(found)]
    return messages


def _begin(start):
    return re.match(rf"(?:test_)?({_WORD})", start, re.IGNORECASE).group(1)

"""Holds test files to the rule that they open with a comment, or a docstring.

It says what the tests prove.
"""

import re

# How a test file opens, by the end of its name.
_SCRIPT = r"(?:#!.*\n|(?!#!))"
_OPENINGS = {"_test.cc": r"//+ *\w", "_cases.cc": r"//+ *\w",
             "_test.py": _SCRIPT + r'r?"""\S', "_test.sh": _SCRIPT + r"# *\S"}


def is_test(name):
    """Whether the file `name` has tests."""
    return name.endswith(tuple(_OPENINGS))


def check(name, text):
    """A list of messages: where the file `name`, whose content is `text`, breaks the rule."""
    return [f"{name}:1: open the file with a comment that says what its tests prove"
            for end, opening in _OPENINGS.items() if name.endswith(end) and not re.match(opening, text)]

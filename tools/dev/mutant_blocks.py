"""Reads the known faults of tests/mutants/*.txt. Its README.md states the format."""

import dataclasses
import pathlib
import re

FOLDER = "tests/mutants"
# In the order in which a block has them. `alone` may be left out.
LINES = ("fault", "breaks", "test", "case", "file", "alone")
CODE = ("text", "with")


class BlockError(Exception):
    """A block that nobody can use. Says where it is, and what to do."""


@dataclasses.dataclass(frozen=True)
class Fault:
    name: str
    breaks: str  # what goes wrong
    test: str  # the label of the test that must fail
    case: str  # its cases, as GoogleTest's --gtest_filter
    file: str
    text: str
    replacement: str
    alone: str  # why no switch can plant it, or ""
    place: str  # of its block: tests/mutants/rpc.txt:12


def parse(name, content):
    """The faults of one file. `name` is for errors."""
    blocks, fields, code, begins = [], {}, None, 0

    def refuse(number, what):
        raise BlockError(f"{name}:{number}: {what}")

    def end():
        if fields:
            blocks.append(_fault(f"{name}:{begins}", fields))

    for number, line in enumerate(content.splitlines(), 1):
        key, colon, value = line.partition(":")
        if line.startswith("    "):
            if code is None:
                refuse(number, "an indented line is code, and code follows 'text:' or 'with:'")
            fields[code].append(line[4:].rstrip())
        elif not line.strip():
            if code is not None:
                fields[code].append("")
        elif line.startswith("#"):
            code = None
        elif colon and key in CODE:
            if value.strip():
                refuse(number, f"put the code below '{key}:', indented by four spaces")
            if key in fields:
                refuse(number, f"a second '{key}:'; each fault begins with a line 'fault:'")
            fields[key], code = [], key
        elif colon and key in LINES:
            if key == "fault":
                end()
                fields, begins = {}, number
            elif not fields:
                refuse(number, "each fault begins with a line 'fault:'")
            if key in fields:
                refuse(number, f"a second '{key}:'; each fault begins with a line 'fault:'")
            if not value.strip():
                refuse(number, f"'{key}:' says nothing")
            fields[key], code = value.strip(), None
        else:
            refuse(number, "a line begins with one of " +
                   ", ".join(f"'{each}:'" for each in LINES + CODE) +
                   ", '#', or four spaces before code")
    end()
    return blocks


def _fault(place, fields):
    for key in LINES[:-1] + CODE:
        if key not in fields:
            raise BlockError(f"{place}: the fault has no line '{key}:'")
    text, replacement = ("\n".join(fields[key]).strip("\n") for key in CODE)
    if not re.fullmatch(r"[A-Z]\w*", fields["fault"]):
        raise BlockError(f"{place}: '{fields['fault']}' is no name: write it in CamelCase")
    if not re.fullmatch(r"//[\w/]+:\w+", fields["test"]):
        raise BlockError(f"{place}: '{fields['test']}' is no test: write //tests/folder:name")
    if not text.strip():
        raise BlockError(f"{place}: 'text:' has no code: name what is replaced")
    if _words(text) == _words(replacement):
        raise BlockError(f"{place}: 'with:' says the same as 'text:'")
    return Fault(fields["fault"], fields["breaks"], fields["test"], fields["case"], fields["file"],
                 text, replacement, fields.get("alone", ""), place)


def load(top):
    """All faults of the tree at `top`, in the order of their files."""
    faults, places = [], {}
    for path in sorted((pathlib.Path(top) / FOLDER).glob("*.txt")):
        faults += parse(f"{FOLDER}/{path.name}", path.read_text())
    for fault in faults:
        if fault.name in places:
            raise BlockError(f"{fault.place}: {places[fault.name]} has that name, too: "
                             f"{fault.name}")
        places[fault.name] = fault.place
    return faults


def _words(code):
    return re.findall(r"\w+|[^\w\s]", code)


def _pattern(code):
    # White space counts only where it parts two words, so that formatting the file hides nothing.
    words = _words(code)
    parts = [re.escape(words[0])]
    for before, word in zip(words, words[1:]):
        both = re.match(r"\w", before) and re.match(r"\w", word)
        parts.append((r"\s+" if both else r"\s*") + re.escape(word))
    start = r"(?<!\w)" if re.match(r"\w", words[0]) else ""
    end = r"(?!\w)" if re.match(r"\w", words[-1]) else ""
    return re.compile(start + "".join(parts) + end)


def span(fault, content):
    """The offsets in its file's `content` between which the text of `fault` is."""
    found = list(_pattern(fault.text).finditer(content))
    if len(found) == 1:
        return found[0].span()
    if not found:
        raise BlockError(f"{fault.place}: {fault.file} has no such text: write down what is there "
                         f"now, or take {fault.name} out if the fault can happen no more")
    lines = ", ".join(str(content.count("\n", 0, each.start()) + 1) for each in found)
    raise BlockError(f"{fault.place}: {fault.file} has that text in lines {lines}: add a line "
                     "before or after it, so that it is found once")


def planted(fault, content):
    """The content of the fault's file with the fault in it."""
    start, end = span(fault, content)
    return content[:start] + fault.replacement + content[end:]

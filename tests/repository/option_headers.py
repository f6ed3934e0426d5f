"""The options that users can set: as headers, schemas and docs/tuning.md state them."""

import re

# How durations are written, by their constructor in std::chrono.
_UNITS = {"nanoseconds": "ns", "microseconds": "µs", "milliseconds": "ms", "seconds": "s", "minutes": "min",
          "hours": "h"}
_INTEGER = re.compile(r"\d+(?:u|ull)?(?:\s*(?:<<|\*)\s*\d+(?:u|ull)?)*")


def structs(header):
    """Name -> body of each struct of `header` whose name says that it holds options; comments are left out."""
    text = re.sub(r"//[^\n]*", "", header)
    found = {}
    for match in re.finditer(r"\bstruct (?:VERBENA_EXPORT )?(\w*(?:Options|Limits|Budgets?|Policy|Config)) \{", text):
        depth, end = 1, match.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        found[match[1]] = text[match.end():end - 1]
    return found


def constants(header):
    """Name -> initializer of each constexpr of `header`."""
    return dict(re.findall(r"\bconstexpr [\w:]+ (k\w+) = ([^;]+);", header))


def integer(expression):
    """The value of `expression`, or None if it is not made of integers, shifts and products."""
    plain = re.sub(r"\bsize_t\{(\d+)\}", r"\1", expression.strip())
    if not _INTEGER.fullmatch(plain):
        return None
    return eval(re.sub(r"(\d)u(?:ll)?\b", r"\1", plain))  # pylint: disable=eval-used


def default_of(name, initializer, known_constants):
    """The default as docs/tuning.md writes it: 4 KiB, 50 µs, kAuto, "auto", {}, 8."""
    text = re.sub(r"\babsl::StatusCode::", "", " ".join(initializer.split()))
    text = known_constants.get(text.rpartition("::")[2], text)
    duration = re.fullmatch(r"std::chrono::(\w+)\((\d+)\)", text)
    if duration:
        return f"{duration[2]} {_UNITS[duration[1]]}"
    if re.fullmatch(r"0\d+", text):  # a file's mode
        return text
    value = integer(text)
    if value is None:
        return text.rpartition("::")[2]
    if "bytes" in name and value:
        for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
            if value % size == 0:
                return f"{value // size} {unit}"
    return str(value)


def without_constants(body):
    """`body` without its static members, which are constants and functions."""
    return re.sub(r"\bstatic [^;]+;", "", body)


def options(body, known_constants):
    """Name -> default of each member of a struct's `body`."""
    found = {}
    for member in without_constants(body).split(";"):
        match = re.fullmatch(r"\s*[\w:<>,*\s]+?\b(\w+)\s*(?:= (.+)|(\{\}))?\s*", member, re.DOTALL)
        if match:
            found[match[1]] = default_of(match[1], match[2] or match[3] or "none", known_constants)
    return found


def schema_options(schema, message):
    """Name -> default of each field of proto3 `message`, of which each is a bool."""
    body = re.search(rf"\bmessage {message} \{{(.*?)^\}}", re.sub(r"//[^\n]*", "", schema),
                     re.MULTILINE | re.DOTALL)[1]
    return {name: "false" for name in re.findall(r"\bbool (\w+) = \d+;", body)}


def environment(source):
    """The environment variables that `source` reads."""
    return set(re.findall(r'getenv\("(\w+)"\)', source))


def documented(document):
    """Heading -> {name: default} of each section of `document` that has a table of options."""
    found = {}
    for section in re.split(r"^## ", document, flags=re.MULTILINE)[1:]:
        heading, _, text = section.partition("\n")
        rows = re.findall(r"^\| `(\w+)` \| ([^|]*?) \|", text, re.MULTILINE)
        if rows:
            found[heading.strip("` ")] = {name: default.strip("`") for name, default in rows}
    return found


def differences(where, stated, true):
    """A line for each option that `stated`, the document's, lacks, invents, or gives another default."""
    lines = [f"{where}::{name}, {default} by default, is not in the document"
             for name, default in true.items() if name not in stated]
    lines += [f"{where}::{name} is in the document, but there is no such option"
              for name in stated if name not in true]
    lines += [f"{where}::{name} is {true[name]} by default, but the document says {stated[name]}"
              for name in stated if name in true and stated[name] != true[name]]
    return lines

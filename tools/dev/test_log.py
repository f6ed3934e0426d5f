"""The part of a failed test's log that is shown."""

import re

LAST_LINES = 80
# Lines of one case that failed: its first lines tell what went wrong, its last how it ended.
CASE_LINES = 60


def excerpt(log):
    """The lines of the cases that failed; without one that says so, the last lines of the log."""
    lines = log.splitlines()
    shown = []
    for case in failed_cases(lines):
        shown += shorten(case)
    return "\n".join(shown or lines[-LAST_LINES:])


def failed_cases(lines):
    """The lines of each case of GoogleTest that failed; the last one if it did not end, too."""
    case = None
    for line in lines:
        if re.match(r"\[ RUN      \] ", line):
            case = []
        if case is None:
            continue
        case.append(line)
        if re.match(r"\[       OK \] |\[  SKIPPED \] ", line):
            case = None
        elif re.match(r"\[  FAILED  \] ", line):
            yield case
            case = None
    if case is not None:
        yield case[:1] + case[1:][-LAST_LINES:]


def shorten(case):
    """At most CASE_LINES of `case`, from both of its ends."""
    if len(case) <= CASE_LINES:
        return case
    half = CASE_LINES // 2
    return case[:half] + [f"... {len(case) - 2 * half} lines"] + case[-half:]

"""Puts faults into a C++ file behind switches, so that one build holds many.

A switch takes the smallest part that differs and that can have one:

  an expression    (VERBENA_FAULT(7) ? (faulty) : (right))
  statements       if (VERBENA_FAULT(7)) { faulty } else { right }

A part that declares what later statements use reaches to the end of its block. VERBENA_FAULT(7) is
true in a process whose environment says VERBENA_PLANTED_FAULT=7.

The reader of C++ in here knows brackets and where statements end. It takes the sources to be
formatted: `<` and `>` are brackets where no space parts them from what they bracket.
"""

import dataclasses
import re
import zlib

import mutant_blocks

ENVIRONMENT = "VERBENA_PLANTED_FAULT"

# Goes before the first line of each file that has a switch. Faults may use what it includes. A
# fault is in no constant expression, and may leave something unused.
PRELUDE = """\
#ifndef VERBENA_FAULT
#include <sched.h>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <type_traits>
namespace verbena_planted {
inline int Number() {
  static const char* const text = std::getenv("VERBENA_PLANTED_FAULT");
  static const int number = text == nullptr ? 0 : std::atoi(text);
  return number;
}
constexpr bool Is(int fault) { return !std::is_constant_evaluated() && Number() == fault; }
}  // namespace verbena_planted
#define VERBENA_FAULT(fault) (::verbena_planted::Is(fault))
#pragma clang diagnostic ignored "-Weverything"
#endif
"""

_TOKEN = re.compile(
    r"(?:\s|//[^\n]*|/\*.*?\*/|^\#(?:[^\n\\]|\\.)*)*"
    r'(?P<token>R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\''
    r"|\d(?:[\w.]|'\d)*|\w+|&&|\|\||::|->|\+\+|--|<<=|>>=|<=>|<=|>=|==|!=|[-+*/%&|^]=|.)",
    re.DOTALL | re.MULTILINE)
_BRACKETS = {"(": ")", "[": "]", "{": "}", "<": ">"}
_ASSIGNMENTS = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="}
_RETURNS = {"return", "co_return", "co_yield"}
# Words that begin a statement that is no expression.
_KEYWORDS = _RETURNS | {"if", "else", "for", "while", "do", "switch", "case", "default", "break",
                        "continue", "goto", "throw", "try", "catch", "using", "typedef"}


def number_of(name):
    """The fault's number: it depends on its name alone, so that a new fault rebuilds one file."""
    return zlib.crc32(name.encode()) & 0x7FFFFFFF


@dataclasses.dataclass
class Token:
    text: str
    start: int
    end: int
    pair: int = -1  # of a bracket: the index of its other half


class Source:
    """The tokens of a file, and the pairs of its brackets."""

    def __init__(self, content):
        self.content = content
        self.tokens = [Token(match["token"], match.start("token"), match.end("token"))
                       for match in _TOKEN.finditer(content)]
        stack = []
        for index, token in enumerate(self.tokens):
            if token.text == "<" and not self._spaced(index):
                stack.append(index)
            elif token.text in "([{":
                stack.append(index)
            elif token.text == ">" and (not stack or self.tokens[stack[-1]].text != "<"
                                        or content[token.start - 1] == " "):
                continue
            elif token.text in (">", ")", "]", "}"):
                while stack and _BRACKETS[self.tokens[stack[-1]].text] != token.text:
                    stack.pop()  # a `<` that was none
                if stack:
                    token.pair = stack.pop()
                    self.tokens[token.pair].pair = index

    def _spaced(self, index):
        token = self.tokens[index]
        return (self.content[token.start - 1:token.start].isspace() or
                self.content[token.end:token.end + 1].isspace())

    def __len__(self):
        return len(self.tokens)

    def text(self, index):
        return self.tokens[index].text if 0 <= index < len(self.tokens) else ""

    def slice(self, first, behind):
        """The code of tokens [first, behind), with the comments in it."""
        if first == behind:
            return ""
        return self.content[self.tokens[first].start:self.tokens[behind - 1].end]

    def first_from(self, offset):
        """The first token that begins at `offset` or behind."""
        return next((index for index, token in enumerate(self.tokens) if token.start >= offset),
                    len(self.tokens))

    def after(self, index):
        """The token behind this one, or behind the brackets that it opens."""
        return max(self.tokens[index].pair, index) + 1

    def around(self, first, behind):
        """The brackets around tokens [first, behind), the innermost first."""
        found = []
        for index in range(first - 1, -1, -1):
            if self.text(index) in _BRACKETS and self.tokens[index].pair >= behind:
                found.append(index)
        return found

    def is_balanced(self, first, behind):
        return all(token.pair == -1 or first <= token.pair < behind
                   for token in self.tokens[first:behind])

    def is_constant(self, first, behind):
        """Whether all names of [first, behind) are those of constants: kMost, SIZE_MAX, true."""
        return all(re.match(r"k[A-Z]|[A-Z_\d]+$|true$|false$|[^\w]|\d", token.text)
                   for token in self.tokens[first:behind])

    # --- statements

    def kind(self, opener):
        """The content of a bracket: a "block" of statements, a "scope" (a class or a namespace),
        or a "list" of expressions."""
        before = self.text(opener - 1)
        if self.text(opener) != "{" or before in ("=", ",", "(", "return"):
            return "list"
        index, words = opener - 1, []
        while index >= 0 and self.text(index) not in (";", "{", "}"):
            words.append(self.text(index))
            index = min(self.tokens[index].pair, index) - 1 if words[-1] in ")]>" and (
                self.tokens[index].pair >= 0) else index - 1
        if {"class", "struct", "union", "enum", "namespace"} & set(words) and ")" not in words:
            return "scope"
        # A function's result may be written behind its parameters.
        arrow = words.index("->") + 1 if "->" in words else len(words)
        is_block = before in ("", ";", "{", "}", ")", "]", "else", "do", "try", "const", "noexcept",
                              "override", "final", "mutable", ":")
        return "block" if is_block or words[arrow:arrow + 1] in ([")"], ["]"], ["mutable"]) else (
            "list")

    def statement_end(self, index, limit):
        """The token behind the statement that begins at `index`; None if it does not end there."""
        word = self.text(index)
        if index >= limit:
            return None
        if word == "{":
            return self.after(index)
        if word == "[" and self.text(index + 1) == "[":
            return self.statement_end(self.after(index), limit)
        if word in ("case", "default"):
            while index < limit and self.text(index) != ":":
                index = self.after(index)
            return index + 1
        if word in ("if", "for", "while", "switch"):
            index += 1 + (self.text(index + 1) == "constexpr")
            end = self.statement_end(self.after(index), limit)
            if word == "if" and end is not None and self.text(end) == "else" and end < limit:
                return self.statement_end(end + 1, limit)
            return end
        if word == "do":
            end = self.statement_end(index + 1, limit)
            return None if end is None else self.statement_end(end + 1, limit)
        if word == "try":
            end = self.after(index + 1)
            while self.text(end) == "catch" and end < limit:
                end = self.after(self.after(end + 1))
            return end
        while index < limit and self.text(index) != ";":
            index = self.after(index)
        return index + 1 if index < limit else None

    def boundaries(self, first, behind):
        """The begins of the statements in [first, behind), and its end; None if those are none."""
        found = [first]
        while found[-1] < behind:
            end = self.statement_end(found[-1], behind)
            if end is None or end > behind:
                return None
            found.append(end)
        return found


@dataclasses.dataclass
class Region:
    """Tokens [first, behind) of a file, and what a fault has instead."""

    fault: mutant_blocks.Fault
    first: int
    behind: int
    faulty: str
    is_expression: bool
    is_condition: bool  # an expression that is tested: its type may be any that converts to bool

    def holds(self, other):
        return self.first <= other.first < self.behind and other.behind <= self.behind

    def is_apart(self, other):
        return self.behind <= other.first or other.behind <= self.first


def region(fault, right):
    """The part of `right`, a Source, that a switch for `fault` takes; None if there is none."""
    start, end = mutant_blocks.span(fault, right.content)
    faulty = Source(mutant_blocks.planted(fault, right.content))
    longer = len(faulty) - len(right)
    first, behind = right.first_from(start), right.first_from(end)
    while first < min(behind, behind + longer) and right.text(first) == faulty.text(first):
        first += 1
    while (first < min(behind, behind + longer) and
           right.text(behind - 1) == faulty.text(behind + longer - 1)):
        behind -= 1
    for opener in right.around(first, behind):
        closer = right.tokens[opener].pair
        if not faulty.is_balanced(opener + 1, closer + longer):
            continue
        for is_expression, find in ((True, _expression), (False, _statements)):
            found = find(right, faulty, opener, first, behind)
            if found:
                begin, end = found
                tested = (right.text(opener - 1) in ("if", "while") and end == closer and
                          right.text(begin - 1) in ("(", ";"))
                return Region(fault, begin, end, faulty.slice(begin, end + longer), is_expression,
                              is_expression and tested)
    return None


def _expression(right, faulty, opener, first, behind):
    # The largest expression between the brackets that has all of [first, behind).
    closer, longer = right.tokens[opener].pair, len(faulty) - len(right)
    in_list = right.kind(opener) == "list"
    begin = opener + 1 if in_list else None
    index, questions = opener + 1, 0
    while index < first:
        word = right.text(index)
        is_label = word == ":" and questions == 0
        questions += (word == "?") - (word == ":" and questions > 0)
        index = right.after(index)
        if word in _ASSIGNMENTS | _RETURNS:
            begin, questions = index, 0
        elif word in (",", ";") or is_label or right.text(index - 1) == "}":
            if in_list or word != ",":
                begin, questions = index if in_list else None, 0
    end = behind
    while end < closer and right.text(end) not in (",", ";"):
        end = right.after(end)
    if begin is None or index != first and index > end:
        return None
    # The compiler would take the value of a constant from its initializer, in which no fault is.
    if right.text(begin - 1) == "=" and right.is_constant(begin, end):
        return None
    if _is_expression(right, begin, end) and _is_expression(faulty, begin, end + longer):
        return begin, end
    return None


def _is_expression(source, first, behind):
    if first >= behind or source.text(first) in _KEYWORDS | {"{", "."}:
        return False
    index = first
    while index < behind:
        if source.text(index) in _ASSIGNMENTS | {",", ";"}:
            return False
        index = source.after(index)
    return index == behind and source.is_balanced(first, behind)


def _statements(right, faulty, opener, first, behind):
    # The fewest statements of the block that have all of [first, behind).
    closer, longer = right.tokens[opener].pair, len(faulty) - len(right)
    bounds = right.boundaries(opener + 1, closer) if right.kind(opener) == "block" else None
    if bounds is None:
        return None
    begin = max(bound for bound in bounds if bound <= first)
    least = min(bound for bound in bounds if bound >= behind)
    if right.text(begin) in ("case", "default"):
        return None
    for end in (least, closer):
        right_bounds = right.boundaries(begin, end)
        faulty_bounds = faulty.boundaries(begin, end + longer)
        # A label in a branch would be there whatever the switch says.
        if right_bounds is None or faulty_bounds is None or any(
                text.text(bound) in ("case", "default")
                for text, bounds in ((right, right_bounds), (faulty, faulty_bounds))
                for bound in bounds[:-1]):
            continue
        declares = _declares(right, begin, end) or _declares(faulty, begin, end + longer)
        if end == closer or not declares:
            return begin, end
    return None


def _declares(source, first, behind):
    # Whether a statement of [first, behind) declares a variable.
    bounds = source.boundaries(first, behind)
    return any(source.text(begin) not in _KEYWORDS | {"{", "co_await", "delete"} and
               _DECLARATION.match(source.slice(begin, end))
               for begin, end in zip(bounds, bounds[1:]))


_DECLARATION = re.compile(
    r"\w*ASSIGN_OR_RETURN\(\s*[\w:<>*& ]+\s[*&]?\w+,|"
    r"(?:\[\[\w+\]\]\s*)?(?:[\w:]+(?:<[^;=]*>)?(?:::\w+)*[\s*&]+)+"
    r"(?:\w+|\[[\w, ]+\])\s*[=;({\[]")


def regions(faults, right):
    """(what has a switch in `right`, what cannot have one). The faults are those of its file."""
    found, alone = [], []
    for fault in faults:
        place = None if fault.alone else region(fault, right)
        if place is None or not all(
                place.is_apart(other) or place.holds(other) or other.holds(place)
                for other in found):
            alone.append(fault)
        else:
            found.append(place)
    return found, alone


def switched(faults, content):
    """(the file's content with a switch for each fault, the faults that cannot have one)."""
    right = Source(content)
    found, alone = regions(faults, right)
    if not found:
        return content, alone
    found.sort(key=lambda each: (each.first, -each.behind))  # the outer ones first
    return PRELUDE + _render(right, found, 0, len(content)), alone


def _render(right, found, at, end):
    # The code between two offsets, with the switches of `found` in it.
    parts = []
    while found:
        outer = found[0]
        inner = [each for each in found[1:] if outer.holds(each)]
        found = [each for each in found[1:] if each not in inner]
        start = right.tokens[outer.first].start
        code_end = right.tokens[outer.behind - 1].end if outer.first < outer.behind else start
        parts += [right.content[at:start], _switch(outer, _render(right, inner, start, code_end))]
        at = code_end
    return "".join(parts) + right.content[at:end]


def _switch(outer, code):
    condition = f"VERBENA_FAULT({number_of(outer.fault.name)})"
    cast = "static_cast<bool>" if outer.is_condition else ""
    if outer.is_expression:  # a comment may end a line of either part
        return f"({condition} ? {cast}({outer.faulty}\n) : {cast}({code}\n))"
    faulty = f"if ({condition}) {{\n{outer.faulty}\n}} "
    return f"{faulty}else {{\n{code}\n}} " if code else faulty

#!/usr/bin/env python3
"""Programs link what they need from a shared library whose other names are hidden: VERBENA_EXPORT marks it.

The rules, and the reasons for them, are in transport/base/export.h.
"""

import functools
import os
import re
import sys
import unittest

sys.path[:0] = [os.path.abspath("tests/repository")]
import case_report
import tree

MACRO = "VERBENA_EXPORT"
HEADER = "transport/base/export.h"
# Four libraries link that of all else, so they use it from outside, too.
BESIDE = ("rpc/admin/", "rpc/naming/etcd/", "rpc/reflection/", "rpc/testing/")
# Only the sources of their own library include these headers.
_INSIDE = ("rpc/admin/", "rpc/naming/etcd/", "rpc/reflection/")
_ELSEWHERE = ("rpc/codegen/", "transport/preload/")  # programs, and a library that lists its symbols

_NO_CODE = re.compile(r'//[^\n]*|"(?:[^"\\\n]|\\.)*"|^#(?:[^\n]|(?<=\\)\n)*', re.MULTILINE)
_INCLUDE = re.compile(r'^#include "verbena/([^"]+\.h)"', re.MULTILINE)
_CLASS = re.compile(r"^( *)(?:class|struct)((?: (?:alignas\(\w+\)|\[\[[^\]]*\]\]|[A-Z]+_[A-Z_]+))*)"
                    r" (\w+(?:::\w+)*)(?: final)?(?:\s*\{|\s+:[^;{]*\{)", re.MULTILINE)
_MEMBER = re.compile(r"\b(\w+(?:::\w+)*)::(?:~?\w+|operator[^(]+)(?=\(|;| =|\{)")
# A statement without indentation: a declaration of a namespace.
_STATEMENT = re.compile(r"^(?![\s}{]|(?:template|namespace|using|class|struct|enum|union|concept|static_assert|inline|"
                        r"constexpr|consteval|friend|typedef|public|private|protected)\b)[^;{}]*;", re.MULTILINE)
_FUNCTION = re.compile(r"(\w+)\(")
# What stands in front of a template: all of it is in the header.
_TEMPLATE = re.compile(r"^ *template <[^;{]*\Z", re.MULTILINE)
_STATE = re.compile(r"^ *(?:inline|static|extern|constinit|thread_local) [\w:<>*& ,]+ \w+(?:\[[^\]]*\])*(?: =|;|\{)",
                    re.MULTILINE)


def code(text):
    """`text` without comments, directives and what strings say."""
    return _NO_CODE.sub("", text)


def reached(starts):
    """`starts`, and all of our headers that these include."""
    found, ahead = set(), list(starts)
    while ahead:
        name = ahead.pop()
        if name not in found and tree.has(name):
            found.add(name)
            ahead += _INCLUDE.findall(tree.text(name))
    return found


@functools.lru_cache(maxsize=None)
def headers():
    """The headers whose declarations code outside the library may link."""
    starts = [name for name in tree.files()
              if re.fullmatch(r"rpc/\w+\.h|verbena\.h|testing\.h", name)
              or name.startswith(BESIDE) and name.endswith((".h", ".cc"))]
    return sorted(name for name in reached(starts) if name.endswith(".h") and not name.startswith(_INSIDE))


def defined(source):
    """The classes of which `source` defines members, without namespaces: {"Semaphore", "Semaphore::Awaiter"}."""
    found = set()
    for line in code(source).splitlines():
        if re.match(r"(?!static_assert)[\w\[]", line):
            found |= {re.sub(r"^(?:(?:verbena|internal|testing)::)+", "", name) for name in _MEMBER.findall(line)}
    return found


@functools.lru_cache(maxsize=None)
def defined_in_sources():
    found = set()
    for name in tree.files():
        if re.fullmatch(r"(rpc|transport)/.*\.cc", name) and not name.startswith(_ELSEWHERE):
            found |= defined(tree.text(name))
    return found


def _ahead(text, start):
    """What `text` has between the end of the last statement and `start`."""
    before = text[:start].rstrip()
    return before[max(before.rfind(";"), before.rfind("}")) + 1:]


def classes(header):
    """Name -> whether it is marked, of each class that `header` defines. Names of nested ones are qualified."""
    text = code(header)
    found, around = {}, []
    for match in _CLASS.finditer(text):
        depth = len(match[1])
        around = [(at, name) for at, name in around if at < depth]
        around.append((depth, match[3]))
        if not _TEMPLATE.search(_ahead(text, match.start())):
            found["::".join(name for _, name in around)] = MACRO in match[2]
    return found


def unmarked_functions(header):
    """The functions that `header` declares in a namespace, and does not define."""
    text = code(header).replace(" = {}", "")
    found = []
    for match in _STATEMENT.finditer(text):
        statement = re.sub(r"\[\[.*?\]\]|\bnoexcept\b", "", match[0])
        function = _FUNCTION.search(statement)
        if not function or MACRO in statement or _TEMPLATE.search(_ahead(text, match.start())):
            continue
        bodies = re.finditer(rf"^\w[^;{{}}=]*\b{function[1]}\([^;{{}}]*\{{", text, re.MULTILINE)
        if all(body[0].startswith("template") for body in bodies):
            found.append(function[1])
    return found


def state(header):
    """The variables of `header` that would be there once for each library."""
    return [" ".join(found[0].split()) for found in _STATE.finditer(code(header)) if "constexpr" not in found[0]]


class ExportsTest(unittest.TestCase):
    def test_headers_are_those_that_programs_and_the_libraries_beside_reach(self):
        self.assertLessEqual({"rpc/channel.h", "transport/coro/task.h", "transport/connect/io_thread.h",
                              "rpc/testing/fake_clock.h"}, set(headers()))
        self.assertNotIn("transport/link/endpoint.h", headers())

    def test_each_class_that_a_source_defines_a_part_of_is_marked(self):
        self.assertEqual([], [f"{header}: {name}" for header in headers()
                              for name, marked in classes(tree.text(header)).items()
                              if not marked and name in defined_in_sources()],
                         f"programs cannot link these: write {MACRO} in front of the name ({HEADER})")

    def test_no_other_class_is_marked(self):
        self.assertEqual([], [f"{header}: {name}" for header in headers()
                              for name, marked in classes(tree.text(header)).items()
                              if marked and name not in defined_in_sources()],
                         f"no source defines a part of these: take {MACRO} away")

    def test_each_function_without_a_body_is_marked(self):
        self.assertEqual([], [f"{header}: {name}" for header in headers()
                              for name in unmarked_functions(tree.text(header))],
                         f"programs cannot link these: write {MACRO} in front ({HEADER})")

    def test_no_header_holds_state(self):
        self.assertEqual([], [f"{header}: {found}" for header in headers() for found in state(tree.text(header))],
                         "each library would have this once: define it in a source file")

    def test_who_uses_the_macro_includes_its_header(self):
        users = [name for name in tree.files() if re.fullmatch(r"(rpc|transport|proto)/.*\.(h|cc)", name)
                 and name != HEADER and re.search(rf"\b{MACRO}\b", code(tree.text(name)))]
        self.assertIn("rpc/channel.h", users)
        self.assertEqual([], [name for name in users if HEADER not in _INCLUDE.findall(tree.text(name))])


class ReadingTest(unittest.TestCase):
    def test_reads_classes(self):
        self.assertEqual({"Plain": False, "Outer": True, "Outer::Inner": True, "Outer::Other": False,
                          "Far::Near": True, "Base": False}, classes("""
class Ahead;
class Plain { int x; };
class [[nodiscard("a; b {")]] VERBENA_EXPORT Outer final : public Other {
  struct VERBENA_EXPORT Inner {
  };
  struct Other : Inner
  {
  };
};
template <typename T>
class Template {
};
class VERBENA_EXPORT Far::Near
    : public Plain,
      public Base {
};
// class Comment {
struct Base {};
"""))

    def test_reads_members_that_sources_define(self):
        self.assertEqual({"A", "B", "C::D", "E", "F", "G"}, defined("""
A::A(int x) : x_(x) {}
internal::B::~B() = default;
absl::StatusOr<int> C::D::Get() const {
  H::Call();
}
bool E::operator==(const E& other) const {
constinit int F::count_;
std::vector<int>
G::List(
"""))

    def test_reads_functions(self):
        self.assertEqual(["Bare", "Long", "Options"], unmarked_functions("""
absl::Status Bare(int x);
VERBENA_EXPORT int Marked(std::function<void()> f = {});
[[nodiscard]] Task<absl::StatusOr<int>> Long(
    int x,
    int y) noexcept;
inline int Inline() { return Later(); }
int Later();
int Later() { return Options(1).Get([] { return 1; }); }
absl::Status Options(int x = 0, Set y = {});
template <typename T>
void Template(T x);
template <typename T>
void Bare(T x) {}
class Class {
  void Member();
};
"""))

    def test_reads_state(self):
        self.assertEqual(["inline thread_local int depth =", "extern Log* the_log;", "inline int counts[4][kOther];",
                          "static std::string name;"],
                         state("""
inline thread_local int depth = 0;
extern Log* the_log;
inline int counts[4][kOther];
inline constexpr int kConstant = 1;
inline int F() {
  static std::string name;
  static constexpr int kOther = 2;
}
class C {
  static C Create();
  static absl::StatusOr<C> Open(const std::string& name = "", int x = 3);
};
"""))


if __name__ == "__main__":
    case_report.main()

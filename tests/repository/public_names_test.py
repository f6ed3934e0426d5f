#!/usr/bin/env python3
"""Users need the headers of rpc/ alone: verbena.h has all of them, and what is shown to users includes no other.

Namespace verbena holds what a user may name. public_names.txt lists it; all else is in verbena::internal.
"""

import functools
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path[:0] = [os.path.abspath("tests/repository")]
import case_report
import tree

# Written to be copied by users, or compiled as they would.
SHOWN = ("examples/", "docs/", "tests/docs/", "tests/consumer/", "tools/dev/new_service/", "README.md")
LIST = "tests/repository/public_names.txt"
TESTING_LIST = "tests/repository/testing_names.txt"
# Names that protobuf declares beside the class of a message; and parameters of concepts, which clang lists as if the
# namespace held them.
_NO_NAME_OF_OURS = re.compile(r"\w+DefaultTypeInternal|_\w+_default_instance_|swap|[A-Z]")
_INTERNAL = re.compile(r'verbena/transport/[\w/]+\.h|@verbena//transport[\w/:]*')


def public_headers():
    """The headers of rpc/ itself. Those of its folders are internal."""
    return [name for name in tree.files() if re.fullmatch(r"rpc/\w+\.h", name)]


def includes(name):
    return re.findall(r'^#include "verbena/([^"]+)"', tree.text(name), re.MULTILINE)


def library_headers():
    """All headers that a program with Verbena in it is compiled from."""
    return [name for name in tree.files()
            if re.fullmatch(r"(rpc|transport)/.*\.h", name)
            and not name.startswith(("rpc/codegen/", "rpc/testing/"))]


def names_of(source, namespace="verbena"):
    """The names that `source` and what it includes declare in `namespace` itself."""
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory)
        for folder, inside in (("headers", "."), ("protos", "proto")):
            (root / folder).mkdir()
            (root / folder / "verbena").symlink_to(tree.top() / inside)
        protos = [f"verbena/{path.name}" for path in (tree.top() / "proto").glob("*.proto")]
        subprocess.run(["protoc", f"-I{root / 'protos'}", f"--cpp_out={root}", *protos], check=True)
        result = subprocess.run(
            ["clang++-19", "-std=c++20", "-fcoro-aligned-allocation", "-w", "-fsyntax-only",
             f"-I{root / 'headers'}", f"-I{root}", "-iquote", str(tree.top()), "-Xclang", "-ast-list", "-Xclang",
             "-ast-dump-filter=verbena", "-x", "c++", "-"],
            input=source, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if result.returncode != 0:
        raise AssertionError(result.stderr)
    names = re.findall(rf"^{namespace}::([^:\n]+)$", result.stdout, re.MULTILINE)
    return {name for name in names if not _NO_NAME_OF_OURS.fullmatch(name)}


def names_of_headers(headers):
    return names_of("".join(f'#include "verbena/{name}"\n' for name in headers))


@functools.lru_cache(maxsize=None)
def listed_names(name=LIST):
    lines = tree.text(name).splitlines()
    return {line for line in lines if line and not line.startswith("#")}


class PublicNamesTest(unittest.TestCase):
    def test_verbena_h_includes_every_public_header(self):
        self.assertIn("rpc/channel.h", public_headers())
        self.assertEqual(public_headers(), includes("verbena.h"))

    def test_users_are_shown_no_internal_header(self):
        shown = [name for name in tree.files() if name.startswith(SHOWN)]
        self.assertIn("docs/guide.md", shown)
        self.assertEqual([], [f"{name}: {found}" for name in shown for found in _INTERNAL.findall(tree.text(name))])


class NamespaceTest(unittest.TestCase):
    def test_namespace_verbena_holds_the_listed_names_alone(self):
        names = names_of_headers(library_headers())
        self.assertIn("Runtime", names)
        self.assertEqual([], sorted(names - listed_names()),
                         "users need not name these: declare them in verbena::internal; "
                         f"or they are new in the API: add them to {LIST}")
        self.assertEqual([], sorted(listed_names() - names),
                         f"no header declares these any more: take them out of {LIST}, "
                         "and tell users in CHANGELOG.md")

    def test_verbena_h_declares_every_listed_name(self):
        self.assertEqual([], sorted(listed_names() - names_of_headers(["verbena.h"])),
                         "verbena.h reaches no header that declares these: "
                         f"include it from one of rpc/, or take them out of {LIST}")

    def test_testing_h_declares_the_names_of_its_own_list(self):
        source = '#include "verbena/testing.h"\n'
        self.assertEqual(["testing"], sorted(names_of(source) - listed_names()))
        self.assertEqual(sorted(listed_names(TESTING_LIST)), sorted(names_of(source, "verbena::testing")))

    def test_every_kind_of_name_is_found(self):
        found = names_of("""
            namespace verbena {
            class Class;
            template <typename T> struct Template { int member; };
            enum Enum { kEnumerator };
            using Alias = int;
            template <typename T> concept Concept = true;
            inline constexpr int kConstant = 1;
            int Function(int parameter);
            namespace internal { class Inner; int InnerFunction(); }
            }
            class verbena_outside;
            """)
        self.assertEqual({"Class", "Template", "Enum", "kEnumerator", "Alias", "Concept", "kConstant",
                          "Function", "internal"}, found)


if __name__ == "__main__":
    case_report.main()

#!/usr/bin/env python3
"""docs/tuning.md lists each option that a user can set, with the default that the headers give it."""

import os
import sys
import unittest

sys.path[:0] = [os.path.abspath("tests/repository")]
import case_report
import option_headers
import tree

DOCUMENT = "docs/tuning.md"
# Structs that no user fills in: name -> who does. A new struct of options is documented or added here.
INTERNAL = {
    "AdminHttpLimits": "the admin server; only tests have others",
    "AdminHttpOptions": "the admin server, from AdminOptions",
    "BufferPoolOptions": "the endpoint, from MemoryBudgets",
    "DedupeLimits": "the server, from DedupeOptions",
    "EndpointOptions": "the shard",
    "ExecutorOptions": "the runtime, from RuntimeOptions",
    "HandshakeOptions": "the link's handshake, from LinkLimits and the device",
    "Limits": "the owner of a log line that repeats",
    "Options": "the runtime: of DeviceKeeper, DeviceContext and ControlPool",
    "PayloadOptions": "the code generator, from (verbena.method)",
    "RdmaCmOptions": "the device's context",
    "ServerLimits": "the server, from ServerOptions",
}


def sources(*suffixes):
    return [tree.text(name) for name in tree.files()
            if name.startswith(("rpc/", "transport/")) and name.endswith(suffixes)]


class TuningTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        headers = sources(".h")
        constants = {}
        cls.bodies = {}
        for header in headers:
            constants.update(option_headers.constants(header))
            cls.bodies.update(option_headers.structs(header))
        cls.options = {name: option_headers.options(body, constants) for name, body in cls.bodies.items()}
        cls.documented = option_headers.documented(tree.text(DOCUMENT))

    def test_every_option_is_documented_with_its_default(self):
        wrong = []
        for struct, options in self.options.items():
            if struct not in INTERNAL:
                wrong += option_headers.differences(struct, self.documented.get(struct, {}), options)
        self.assertEqual([], wrong)

    def test_every_member_of_a_struct_of_options_is_read(self):
        for struct, body in self.bodies.items():
            members = option_headers.without_constants(body).count(";")
            self.assertEqual(members, len(self.options[struct]), struct)

    def test_every_section_is_of_a_struct_that_exists(self):
        known = {*self.options, "verbena.method", "Environment variables"} - set(INTERNAL)
        self.assertEqual(set(), set(self.documented) - known)

    def test_every_internal_struct_exists(self):
        self.assertEqual(set(), set(INTERNAL) - set(self.options))

    def test_every_option_of_methods_is_documented(self):
        true = option_headers.schema_options(tree.text("proto/options.proto"), "MethodOptions")
        self.assertEqual([], option_headers.differences("verbena.method", self.documented["verbena.method"],
                                                        true))

    def test_every_environment_variable_is_documented(self):
        read = set().union(*map(option_headers.environment, sources(".h", ".cc")))
        self.assertEqual(read, set(self.documented["Environment variables"]))


HEADER = """
inline constexpr uint32_t kWindow = 1u << 4;
// struct OldOptions { int gone = 1; };
struct FakeLimits {
  // At most 7; see struct other.
  uint32_t depth = 8;
  size_t send_bytes = size_t{128} << 20;
  uint32_t ring_bytes = 256 * 1024;
  uint32_t window = Other::kWindow;
  Duration wait = std::chrono::microseconds(50);
  Level level = Level::kAuto;
  std::string device = "auto";
  std::vector<int> cpus = {};
  std::vector<absl::StatusCode> codes = {absl::StatusCode::kAborted,
                                         absl::StatusCode::kUnavailable};
  static constexpr int kMost = 5;
  Clock* clock = nullptr;
  mode_t mode = 0644;
  int any;
};
"""
TRUE = {"depth": "8", "send_bytes": "128 MiB", "ring_bytes": "256 KiB", "window": "16", "wait": "50 µs",
        "level": "kAuto", "device": '"auto"', "cpus": "{}", "codes": "{kAborted, kUnavailable}",
        "clock": "nullptr", "mode": "0644", "any": "none"}


class DifferencesTest(unittest.TestCase):
    def options(self, header=HEADER):
        return option_headers.options(option_headers.structs(header)["FakeLimits"],
                                      option_headers.constants(header))

    def document(self, options=None):
        rows = "".join(f"| `{name}` | `{default}` | text |\n" for name, default in (options or TRUE).items())
        return f"# Title\n\n## `FakeLimits`\n\n| option | default | text |\n| --- | --- | --- |\n{rows}\n## End\n"

    def compare(self, header, document):
        return option_headers.differences("FakeLimits", option_headers.documented(document)["FakeLimits"],
                                          self.options(header))

    def test_defaults_are_written_as_people_read_them(self):
        self.assertEqual(TRUE, self.options())

    def test_a_document_that_says_the_same_has_no_difference(self):
        self.assertEqual([], self.compare(HEADER, self.document()))

    def test_an_option_that_the_document_lacks_is_named(self):
        header = HEADER.replace("  int any;", "  int any;\n  int added = 3;")
        self.assertEqual(["FakeLimits::added, 3 by default, is not in the document"],
                         self.compare(header, self.document()))

    def test_an_option_that_no_header_has_is_named(self):
        self.assertEqual(["FakeLimits::any is in the document, but there is no such option"],
                         self.compare(HEADER.replace("  int any;", ""), self.document()))

    def test_another_default_is_named(self):
        for old, new, line in [
                ("depth = 8", "depth = 9", "depth is 9 by default, but the document says 8"),
                ("microseconds(50)", "seconds(50)", "wait is 50 s by default, but the document says 50 µs"),
                ("kWindow = 1u << 4", "kWindow = 32", "window is 32 by default, but the document says 16"),
                ("128} << 20", "64} << 20", "send_bytes is 64 MiB by default, but the document says 128 MiB")]:
            self.assertEqual([f"FakeLimits::{line}"], self.compare(HEADER.replace(old, new), self.document()))

    def test_a_struct_in_a_comment_is_none(self):
        self.assertEqual(["FakeLimits"], list(option_headers.structs(HEADER)))

    def test_options_of_a_schema_are_its_fields(self):
        schema = "message M {\n  // bool no = 9;\n  bool yes = 1;\n}\nmessage N {\n  bool other = 1;\n}\n"
        self.assertEqual({"yes": "false"}, option_headers.schema_options(schema, "M"))

    def test_environment_variables_are_those_that_are_read(self):
        self.assertEqual({"A_B"}, option_headers.environment('x = std::getenv("A_B"); // "C_D"'))


if __name__ == "__main__":
    case_report.main()

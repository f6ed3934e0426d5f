#!/usr/bin/env python3
"""Holds the tree to the table of allowed dependencies."""

import os
import re
import sys
import unittest

sys.path[:0] = [os.path.abspath("tests/repository"), os.path.abspath("tools/dev")]
import case_report
import layers
import tree


class LayersTest(unittest.TestCase):
    def test_no_file_reaches_a_layer_that_it_may_not_use(self):
        found = [message for name in tree.files() for message in layers.check(name, tree.text(name))]
        self.assertEqual([], found)

    def test_the_tree_was_really_read(self):
        self.assertIn("transport/coro/task.h", tree.files())
        self.assertIn("transport/coro/BUILD", tree.files())


class ProtobufTest(unittest.TestCase):
    """A newer protobuf is the work of these files."""

    FILES = ("rpc/detail/message.h", "rpc/detail/message.cc", "rpc/codegen/protobuf.h", "rpc/reflection/files.cc")
    # The one name that users' handlers and interceptors spell, too.
    NAMES = re.compile(r"google/protobuf/|google::protobuf(?!::MessageLite\b)|\bGOOGLE_PROTOBUF_")
    # Of messages: a newer protobuf returns another type.
    OTHERWISE = re.compile(r"\bGetTypeName\(\)|\bSerializePartial\w+\(")
    # Of descriptors: the same.
    VIEWS = re.compile(r"(?:\.|->)(?:name|full_name|package)\(\)")

    @classmethod
    def found(cls, name, text):
        patterns = [cls.NAMES, cls.OTHERWISE] + ([cls.VIEWS] if name.startswith("rpc/codegen/") else [])
        return [found[0] for pattern in patterns for found in pattern.finditer(text)]

    def test_one_header_of_the_library_with_its_source_one_of_the_plugin_and_reflections_files_know_protobuf(self):
        product = [name for name in tree.files()
                   if name.startswith(("rpc/", "transport/")) and name.endswith((".h", ".cc"))]
        for name in self.FILES:
            self.assertIn(name, product)
        self.assertEqual({}, {name: found for name in product if name not in self.FILES
                              and (found := self.found(name, tree.text(name)))})

    def test_another_use_is_found(self):
        for name, text in (("rpc/a.h", '#include "google/protobuf/message_lite.h"'),
                           ("rpc/a.cc", "google::protobuf::Message& a"), ("transport/a.cc", "a.GetTypeName()"),
                           ("rpc/codegen/a.cc", "return service.full_name();"),
                           ("rpc/codegen/a.cc", "GOOGLE_PROTOBUF_VERSION")):
            self.assertEqual(1, len(self.found(name, text)), text)
        self.assertEqual([], self.found("rpc/a.h", "const google::protobuf::MessageLite& a; b.full_name();"))


class OrderTest(unittest.TestCase):
    README = """Rooms.

From the ground up: a file includes only files of this folder that come before it here.

1. Values: `ids`, `limits`.
2. All that is
   above: `link`.

No list: `other`.
"""

    def found(self, **files):
        texts = {f"transport/link/{name.replace('_', '.')}": f'#include "verbena/{include}"\n'
                 for name, include in files.items()}
        return layers.check_order("transport/link", self.README, texts)

    def test_no_file_of_these_folders_includes_one_above_itself(self):
        for folder in layers.ORDERED:
            files = {name: tree.text(name) for name in tree.files()
                     if os.path.dirname(name) == folder and name.endswith((".h", ".cc"))}
            self.assertEqual([], layers.check_order(folder, tree.text(f"{folder}/README.md"), files))

    def test_includes_may_point_down_to_the_own_header_and_to_other_folders(self):
        self.assertEqual([], self.found(ids_h="a.h", limits_h="transport/link/ids.h",
                                        link_h="transport/link/limits.h", link_cc="transport/link/link.h",
                                        limits_cc="transport/base/link.h"))

    def test_an_include_that_points_up_is_refused(self):
        self.assertEqual(
            ["transport/link/ids.h: includes limits.h, which comes after it in the list of "
             "transport/link/README.md: drop the include, or move one of the two in it"],
            self.found(ids_h="transport/link/limits.h", limits_h="a.h", link_h="a.h"))

    def test_rooms_in_parentheses_know_each_other(self):
        files = {"transport/link/a.h": '#include "verbena/transport/link/b.h"\n',
                 "transport/link/b.h": '#include "verbena/transport/link/a.h"\n',
                 "transport/link/c.h": ""}
        listed = self.README[:self.README.index("1.")]
        self.assertEqual([], layers.check_order("transport/link", listed + "1. (`a`, `b`): x.\n2. `c`\n", files))
        self.assertEqual(1, len(layers.check_order("transport/link", listed + "1. `a`, `b`, `c`\n", files)))

    def test_a_file_that_is_not_listed_and_a_name_without_a_file_are_refused(self):
        self.assertEqual(
            ["transport/link/README.md: new is missing in the list from the ground up",
             "transport/link/README.md: link is in the list from the ground up, and no file has that name"],
            self.found(ids_h="a.h", limits_h="a.h", new_h="a.h"))


class PictureTest(unittest.TestCase):
    def test_the_architecture_shows_the_picture_of_the_table(self):
        self.assertIn(f"\n```\n{layers.picture()}```\n", tree.text("ARCHITECTURE.md"),
                      "replace it by the output of: python3 tools/dev/layers.py --picture")

    def test_the_picture_shows_each_folder_once_and_above_those_that_it_may_use(self):
        rows = [[side.strip().split(", ") for side in line.split("─▶")]
                for line in layers.picture().splitlines()]
        order = [folder for folders, _ in rows for folder in folders]
        parts = {"tools/pch"}  # of a folder that may use anything
        self.assertEqual(sorted(set(layers.FOLDERS) - parts), sorted(order))
        for folders, used in rows:
            for each in set(used) - {"anything", "nothing"}:
                self.assertGreater(order.index(each), order.index(folders[-1]), each)

    def test_the_picture_leaves_out_arrows_that_follow_from_others(self):
        self.assertRegex(layers.picture(), r"(?m)^transport/coro +─▶ transport/base$")
        self.assertRegex(layers.picture(), r"(?m)^transport/device +─▶ transport/coro$")


class TableTest(unittest.TestCase):
    def test_each_folder_that_it_names_is_there(self):
        self.assertEqual([], layers.wrong_names(layers.FOLDERS, layers.LIBRARIES, lambda each: (tree.top() / each).is_dir()))

    def test_a_wrong_name_is_refused_with_the_nearest_right_one(self):
        rows = {"transport/base": set(), "rpc": {"transport/bass"}}
        self.assertEqual(["tools/folders.bzl: there is no folder transport/bass; did you mean transport/base?"],
                         layers.wrong_names(rows, {}, lambda each: each != "transport/bass"))

    def test_each_library_is_used_by_the_folders_that_may_use_it(self):
        # Each folder's Bazel library depends on it.
        used = {(layers.folder_of(os.path.dirname(name)), include) for name in tree.files()
                if name.startswith(("rpc/", "transport/")) and name.endswith((".h", ".cc"))
                for include in re.findall(r'(?m)^ *# *include ["<]([^">]+)', tree.text(name))}
        self.assertEqual([], [
            (library, folder) for library, row in layers.LIBRARIES.items() for folder in row.folders
            if folder.startswith(("rpc", "transport"))
            and not any(user.startswith(folder) and re.match(row.includes, include) for user, include in used)])

    def refused(self, path, text):
        self.assertEqual(1, len(layers.check(path, text)), layers.check(path, text))

    def accepted(self, path, text):
        self.assertEqual([], layers.check(path, text))

    def test_an_include_that_points_up_is_refused(self):
        self.refused("transport/coro/a.h", '#include "verbena/transport/executor/executor.h"\n')
        self.refused("transport/device/a.cc", '#include "verbena/rpc/channel.h"\n')

    def test_siblings_do_not_know_each_other(self):
        self.refused("transport/soft/a.cc", '#include "verbena/transport/verbs/rdma_device.h"\n')
        self.refused("transport/verbs/a.cc", '#include "verbena/transport/soft/soft_device.h"\n')

    def test_examples_use_the_public_headers_alone(self):
        self.refused("examples/kv/a.cc", '#include "verbena/transport/coro/task.h"\n')
        self.refused("examples/kv/BUILD", 'cc_library(deps = ["//transport/executor"])')
        self.accepted("examples/kv/a.cc", '#include "verbena/rpc/task.h"\n#include "verbena/verbena.h"\n')
        self.accepted("examples/kv/BUILD", 'cc_library(deps = ["//rpc:task", "//:verbena"])')

    def test_an_include_that_points_down_is_accepted(self):
        self.accepted("rpc/client/channel.cc", '#include "verbena/transport/link/link.h"\n')

    def test_a_dependency_in_a_BUILD_file_counts_as_an_include_does(self):
        self.refused("transport/memory/BUILD", 'cc_library(deps = ["//transport/link"])')
        self.refused("transport/memory/BUILD", 'cc_library(deps = ["@verbena//rpc:server"])')
        self.refused("rpc/BUILD", 'cc_library(deps = ["@boost//:asio"])')

    def test_loads_visibility_and_comments_are_no_dependencies(self):
        self.accepted("transport/base/BUILD",
                      'load("//rpc:x.bzl", "x")\n# "//rpc"\ncc_library(visibility = ["//rpc:y"])')

    def test_libraries_stay_in_their_folders(self):
        self.refused("transport/link/a.h", "#include <google/protobuf/message.h>\n")
        self.refused("transport/link/a.h", '#include "verbena/handshake.pb.h"\n')
        self.refused("transport/coro/a.h", "#include <infiniband/verbs.h>\n")
        self.refused("rpc/channel.h", "#include <infiniband/verbs.h>\n")
        self.refused("rpc/channel.h", "#include <boost/asio.hpp>\n")
        self.refused("rpc/channel.h", "#include <liburing.h>\n")
        self.accepted("transport/connect/a.cc", "#include <boost/asio.hpp>\n")
        self.accepted("rpc/naming/etcd/a.h", "#include <boost/asio.hpp>\n")

    def test_a_new_folder_must_enter_the_table(self):
        self.refused("transport/novel/a.h", "")


if __name__ == "__main__":
    case_report.main()

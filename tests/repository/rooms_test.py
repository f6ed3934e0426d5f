#!/usr/bin/env python3
"""Circles by use in rpc/, and uses of bodies that lie above their users, are those that are listed here: no more come."""

import os
import sys
import unittest

sys.path[:0] = [os.path.abspath("tests/repository"), os.path.abspath("tools/dev")]
import case_report
import rooms
import tree

# Strike out what ends.
CIRCLES = [["rpc/channel.cc", "rpc/client/attempts", "rpc/client/full_call"],
           ["rpc/naming/etcd/client", "rpc/naming/etcd/http"],
           ["rpc/server/call", "rpc/server/server_context"]]
FROM_BELOW = {
    "rpc/channel.cc": ["rpc/client/full_call"],
    "rpc/loan.cc": ["rpc/server/server_context"],
    "rpc/metadata.cc": ["rpc/call/context_block", "rpc/client/call", "rpc/client/full_call", "rpc/client/stream_call",
                        "rpc/server/call", "rpc/server/dedupe", "rpc/server/server_context"],
    "rpc/remote_memory.cc": ["rpc/server/server_context"],
    "rpc/status.cc": ["rpc/client/attempts", "rpc/client/bulk", "rpc/client/call", "rpc/client/connection",
                      "rpc/client/dedupe", "rpc/client/full_call", "rpc/client/stream_call", "rpc/naming/etcd/client",
                      "rpc/server/call", "rpc/server/server_context", "rpc/server/state"],
}


class TreeTest(unittest.TestCase):
    def test_no_circle_and_no_use_from_below_is_new_or_gone(self):
        texts = {name: tree.text(name) for name in tree.files()
                 if name.startswith(("rpc/", "transport/")) and name.endswith((".h", ".cc"))}
        self.assertLess(200, len(texts))
        print("\n".join(rooms.report(texts)))
        arrows, named = rooms.uses(texts)
        self.assertEqual(CIRCLES, rooms.circles_of_rpc(arrows))
        found = {}
        for room, source in sorted(rooms.from_below(named)):
            found.setdefault(source, []).append(room)
        self.assertEqual(FROM_BELOW, found)


class RulesTest(unittest.TestCase):
    CHAPTER = ('class VERBENA_EXPORT Channel {\n  void Call();\n};\n'
               'VERBENA_EXPORT absl::Status WithOutcome(absl::Status status);\n')
    BODIES = '#include "verbena/rpc/channel.h"\nvoid Channel::Call() {}\n'

    def uses(self, text, **more):
        texts = {"rpc/channel.h": self.CHAPTER, "rpc/channel.cc": self.BODIES,
                 "rpc/status.cc": "absl::Status WithOutcome(absl::Status status) { return status; }\n",
                 "rpc/client/a.cc": text, **more}
        return rooms.uses(texts)

    def names(self, text):
        return {source: sorted(names) for (room, source), names in rooms.from_below(self.uses(text)[1]).items()
                if room == "rpc/client/a"}

    def test_a_room_uses_the_bodies_of_each_class_and_function_that_it_names(self):
        self.assertEqual({"rpc/channel.cc": ["Channel"], "rpc/status.cc": ["WithOutcome"]},
                         self.names("void F(Channel& channel) { return WithOutcome(s); }"))

    def test_comments_texts_friends_and_forward_declarations_use_nothing(self):
        self.assertEqual({}, self.names('// Channel\nclass Channel;\n  friend class Channel;\nLog("Channel");\n'))

    def test_a_member_of_the_same_name_is_another_function(self):
        self.assertEqual({}, self.names("  x.WithOutcome(s);\n  x->WithOutcome(s);\n  Other::WithOutcome(s);\n"))
        self.assertEqual({}, self.names("struct B {\n  virtual absl::Status WithOutcome(int a);\n};\n"))
        self.assertEqual({"rpc/status.cc": ["WithOutcome"]}, self.names("  return internal::WithOutcome(s);\n"))

    def test_a_chapter_alone_makes_no_circle_and_bodies_that_go_back_do(self):
        user = '#include "verbena/rpc/channel.h"\nvoid F(Channel& channel);\n'
        self.assertEqual([], rooms.circles(self.uses(user)[0]))
        back = '#include "verbena/rpc/client/a.h"\n' + self.BODIES
        arrows, _ = self.uses(user, **{"rpc/client/a.h": "", "rpc/channel.cc": back})
        self.assertEqual([["rpc/channel.cc", "rpc/client/a"]], rooms.circles(arrows))

    def test_a_header_and_the_source_of_its_name_are_one_room(self):
        self.assertEqual("rpc/client/a", rooms.room_of("rpc/client/a.h"))
        self.assertEqual("rpc/client/a", rooms.room_of("rpc/client/a.cc"))
        self.assertEqual("rpc/channel.h", rooms.room_of("rpc/channel.h"))
        self.assertEqual("rpc/channel.cc", rooms.room_of("rpc/channel.cc"))

    def test_circles_are_the_largest_sets_that_reach_each_other(self):
        arrows = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
        self.assertEqual([["a", "b", "c"], ["d", "e"]], rooms.circles(arrows))


if __name__ == "__main__":
    case_report.main()

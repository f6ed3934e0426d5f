#!/usr/bin/env python3
"""rpc/ has no circles by use, and nobody uses bodies that lie above."""

import os
import sys
import unittest

sys.path[:0] = [os.path.abspath("tests/repository"), os.path.abspath("tools/dev")]
import case_report
import rooms
import tree

class TreeTest(unittest.TestCase):
    def test_there_is_no_circle_and_nobody_uses_bodies_that_lie_above(self):
        texts = {name: tree.text(name) for name in tree.files()
                 if name.startswith(("rpc/", "transport/")) and name.endswith((".h", ".cc"))}
        self.assertLess(200, len(texts))
        print("\n".join(rooms.report(texts)))
        arrows, named = rooms.uses(texts)
        self.assertEqual([], rooms.circles_of_rpc(arrows))
        self.assertEqual({}, rooms.from_below(named))


class RulesTest(unittest.TestCase):
    CHAPTER = ('class VERBENA_EXPORT Channel {\n  void Call();\n};\n'
               'VERBENA_EXPORT absl::Status WithOutcome(absl::Status status);\n')
    BODIES = '#include "verbena/rpc/channel.h"\nvoid Channel::Call() {}\n'
    STATUS = "absl::Status WithOutcome(absl::Status status) { return status; }\n"

    def uses(self, text, room="rpc/call/a", **more):
        texts = {"rpc/channel.h": self.CHAPTER, "rpc/client/channel.cc": self.BODIES,
                 "rpc/server/status.cc": self.STATUS, room + ".cc": text, **more}
        return rooms.uses(texts)

    def names(self, text):
        return {source: sorted(names) for (room, source), names in rooms.from_below(self.uses(text)[1]).items()
                if room == "rpc/call/a"}

    def test_a_room_uses_the_bodies_of_each_class_and_function_that_it_names(self):
        self.assertEqual({"rpc/client/channel": ["Channel"], "rpc/server/status": ["WithOutcome"]},
                         self.names("void F(Channel& channel) { return WithOutcome(s); }"))

    def test_bodies_of_the_own_folder_and_of_one_that_it_may_use_do_not_lie_above(self):
        use = "void F(Channel& channel) { return WithOutcome(s); }"
        _, named = self.uses(use, "rpc/client/b", **{"rpc/server/status.cc": "", "rpc/call/status.cc": self.STATUS})
        self.assertEqual({("rpc/client/b", "rpc/client/channel"), ("rpc/client/b", "rpc/call/status")}, set(named))
        self.assertEqual({}, rooms.from_below(named))

    def test_of_overloads_a_room_means_those_that_it_includes(self):
        more = {"rpc/call/status.h": "", "rpc/call/status.cc": self.STATUS}
        arrows, _ = self.uses('#include "verbena/rpc/call/status.h"\n  return WithOutcome(s);\n', **more)
        self.assertEqual({"rpc/call/status"}, arrows["rpc/call/a"])

    def test_comments_texts_friends_and_forward_declarations_use_nothing(self):
        self.assertEqual({}, self.names('// Channel\nclass Channel;\n  friend class Channel;\nLog("Channel");\n'))

    def test_a_member_of_the_same_name_is_another_function(self):
        self.assertEqual({}, self.names("  x.WithOutcome(s);\n  x->WithOutcome(s);\n  Other::WithOutcome(s);\n"))
        self.assertEqual({}, self.names("struct B {\n  virtual absl::Status WithOutcome(int a);\n};\n"))
        self.assertEqual({"rpc/server/status": ["WithOutcome"]}, self.names("  return internal::WithOutcome(s);\n"))

    def test_a_chapter_alone_makes_no_circle_and_bodies_that_go_back_do(self):
        user = '#include "verbena/rpc/channel.h"\nvoid F(Channel& channel);\n'
        self.assertEqual([], rooms.circles(self.uses(user)[0]))
        back = '#include "verbena/rpc/call/a.h"\n' + self.BODIES
        arrows, _ = self.uses(user, **{"rpc/call/a.h": "", "rpc/client/channel.cc": back})
        self.assertEqual([["rpc/call/a", "rpc/client/channel"]], rooms.circles(arrows))

    def test_a_header_and_the_source_of_its_name_are_one_room(self):
        self.assertEqual("rpc/client/a", rooms.room_of("rpc/client/a.h"))
        self.assertEqual("rpc/client/a", rooms.room_of("rpc/client/a.cc"))
        self.assertEqual("rpc/channel.h", rooms.room_of("rpc/channel.h"))

    def test_circles_are_the_largest_sets_that_reach_each_other(self):
        arrows = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
        self.assertEqual([["a", "b", "c"], ["d", "e"]], rooms.circles(arrows))


if __name__ == "__main__":
    case_report.main()

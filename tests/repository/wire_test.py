#!/usr/bin/env python3
"""What peers send each other, or share in memory, does not change under an old number.

Each wire has a number, which its peers compare before all else. The table `WIRES` says where the number
stands and which declarations make the wire. wires.txt keeps, for each wire, its number and a digest of
those declarations without comments and white space.
"""

import hashlib
import os
import re
import sys
import unittest

sys.path[:0] = [os.path.abspath("tests/repository")]
import case_report
import tree

WHOLE = ()  # all of the file
RECORD = "tests/repository/wires.txt"
WIRES = {
    "link": {
        "number": ("transport/connect/handshake.h", "kMaxProtocolVersion"),
        "document": ("proto/WIRE.md", r"^Version (\d+)\.", "Version {}."),
        "parts": {
            "proto/handshake.proto": WHOLE,
            "proto/status.proto": WHOLE,
            "proto/remote_memory.proto": WHOLE,
            "transport/link/wire_format.h": ("SendHeader", "FrameKind", "FrameHeader", "CompactHeader",
                                             "kSend.*", "kFrame.*", "kCompact.*"),
            "rpc/call/bulk_format.cc": ("Wire.*",),
            "rpc/call/context_block.cc": ("Wire.*",),
        },
    },
    "soft device, shared memory": {
        "number": ("transport/soft/control_socket.h", "kRevision"),
        "parts": {
            "transport/soft/control_socket.h": ("ControlMessage",),
            "transport/soft/ring.h": ("Opcode", "MessageFlags", "MessageHeader", "TargetRange", "AtomicOperands",
                                      "NakReason", "RefusedFragment", "RingLine", "kLineBytes",
                                      "kHeaderBytes"),
            "transport/soft/lane.h": ("WakeLevel", "LaneHeader"),
            "transport/soft/memory_table.h": ("MemoryEntry", "QpEntry", "DeviceTables", "kMaxMemoryKeys"),
            "transport/soft/peer.h": ("Doorbell", "CqControl", "kMaxCompletionQueues"),
        },
    },
    "soft device, TCP": {
        "number": ("transport/soft/tcp_format.h", "kVersion"),
        "document": ("transport/soft/WIRE.md", r"over TCP: version (\d+)\.", "over TCP: version {}."),
        "parts": {
            "transport/soft/tcp_format.h": ("TcpGreeting", "TcpControl", "TcpChunk"),
            "transport/soft/tcp_format.cc": WHOLE,
            "transport/soft/ring.h": ("Opcode", "MessageFlags", "MessageHeader", "TargetRange", "AtomicOperands",
                                      "NakReason", "RefusedFragment", "RingLine"),
        },
    },
    "connection manager of the preload library": {
        "number": ("transport/preload/cm_message.cc", "kVersion"),
        "parts": {"transport/preload/cm_message.h": ("CmKind",), "transport/preload/cm_message.cc": ("kAt.*", "kMagic")},
    },
}


def bare(text):
    """`text` without comments and white space."""
    return re.sub(r"\s+", "", re.sub(r"//[^\n]*", "", text))


def declarations(text, names):
    """The structs, enums and constants of `text` whose whole names match one of `names`, in order."""
    found = re.finditer(r"^ *(?:struct|enum class|enum) (?:alignas\(\w+\) )?(?P<type>\w+)[^;{]*\{(?:[^\n]*\};|.*?^\};)"
                        r"|^ *(?:inline |static )?constexpr [\w:]+ (?P<constant>\w+)[^;]*;", text,
                        re.MULTILINE | re.DOTALL)
    return [match[0] for match in found
            if any(re.fullmatch(name, match["type"] or match["constant"]) for name in names)]


def digest(wire):
    """Of what the wire's parts say."""
    said = []
    for name, names in wire["parts"].items():
        text = tree.text(name)
        parts = [text] if names == WHOLE else declarations(text, names)
        said += [bare(part) for part in parts]
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:16]


def number(wire):
    name, constant = wire["number"]
    return int(re.search(rf"\b{constant} = (\d+);", tree.text(name))[1])


class WireTest(unittest.TestCase):
    def test_what_is_sent_has_not_changed_under_its_number(self):
        record = dict(line.split(": ") for line in tree.text(RECORD).splitlines() if not line.startswith("#"))
        self.assertEqual(sorted(WIRES), sorted(record))
        for name, wire in WIRES.items():
            there = f"{number(wire)} {digest(wire)}"
            where, constant = wire["number"]
            self.assertEqual(record[name], there,
                             f"the wire \"{name}\" is declared otherwise than {RECORD} remembers. If peers send other "
                             f"bytes now, raise {constant} in {where}; if they send the same, leave it. Then write "
                             f"in {RECORD}: {name}: {number(wire)} {digest(wire)}")

    def test_each_declaration_that_a_wire_names_is_there(self):
        for wire in WIRES.values():
            for name, names in wire["parts"].items():
                for each in names:
                    self.assertTrue(declarations(tree.text(name), [each]), f"{name} declares no {each}")

    def test_documents_name_the_same_numbers(self):
        for wire in WIRES.values():
            if "document" not in wire:
                continue
            name, pattern, wanted = wire["document"]
            self.assertEqual(re.findall(pattern, tree.text(name), re.MULTILINE), [str(number(wire))],
                             f"{name} must say: {wanted.format(number(wire))}")

    def test_a_declaration_on_one_line_ends_there(self):
        self.assertEqual(declarations("enum A { kB = 1 };\n\nstruct C {\n  int d;\n};\n", ["C"]), ["struct C {\n  int d;\n};"])

    def test_comments_and_line_breaks_do_not_count_and_a_field_does(self):
        text = "struct A {\n  int b;  // bytes\n};\nstruct C {\n  int d;\n};\n"
        self.assertEqual(declarations(text, ["A"]), ["struct A {\n  int b;  // bytes\n};"])
        self.assertEqual(bare("struct A {\n  int b;  // bytes\n};"), bare("struct A { int b; };"))
        self.assertNotEqual(bare("struct A { int b; };"), bare("struct A { int b; int c; };"))


if __name__ == "__main__":
    case_report.main()

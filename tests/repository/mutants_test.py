#!/usr/bin/env python3
"""Each fault of tests/mutants can be planted, and names a test that there is.

Nobody runs ./dev mutants for each change, so this test finds at once what it would refuse.
"""

import contextlib
import fnmatch
import io
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path[:0] = [os.path.abspath("tests/repository"), os.path.abspath("tools/dev")]
import case_report
import bazel_events
import mutant_blocks
import mutant_switch
import mutant_tree
import mutants
import tree

BLOCK = """\
fault: RangeUnchecked
breaks: a peer may write beyond its region
test: //tests/rpc:some_test
case: *RefusesWhatIsBeyond
file: rpc/region.cc
text:
    if (bytes > left) return Refuse(bytes);
with:
"""


def block(**changed):
    """BLOCK with other values of some lines."""
    text = BLOCK
    for key, value in changed.items():
        text = re.sub(rf"(?m)^{key}:.*\n(?:    .*\n)*", f"{key}:{value}\n", text)
    return text


class TreeTest(unittest.TestCase):
    maxDiff = None

    CASE = re.compile(r"^\s*(TEST|TEST_F|TEST_P|TYPED_TEST|TYPED_TEST_P)\(\s*(\w+),\s*(\w+)\)",
                      re.MULTILINE)

    @classmethod
    def setUpClass(cls):
        cls.faults = mutant_blocks.load(tree.top())

    def test_each_folders_faults_are_in_its_file(self):
        self.assertGreater(len(self.faults), 400)
        for fault in self.faults:
            folder = os.path.dirname(fault.file).replace("/", "_")
            self.assertTrue(fault.place.startswith(f"{mutant_blocks.FOLDER}/{folder}.txt:"),
                            f"{fault.place}: {fault.file} belongs into {folder}.txt")

    def test_each_text_is_found_once_in_its_file(self):
        wrong = []
        for fault in self.faults:
            try:
                mutant_blocks.span(fault, tree.text(fault.file))
            except mutant_blocks.BlockError as error:
                wrong.append(str(error))
        self.assertEqual([], wrong)

    def test_each_fault_has_a_switch_or_says_why_it_has_none(self):
        by_file = {}
        for fault in self.faults:
            by_file.setdefault(fault.file, []).append(fault)
        wrong = []
        for name, faults in by_file.items():
            _, alone = mutant_switch.regions(faults, mutant_switch.Source(tree.text(name)))
            wrong += [f"{fault.place}: no switch can plant it: name whole statements or whole "
                      "expressions, or add a line 'alone:' that says why"
                      for fault in alone if not fault.alone]
        self.assertEqual([], wrong)

    def test_no_two_faults_have_one_number(self):
        numbers = {mutant_switch.number_of(fault.name) for fault in self.faults}
        self.assertEqual(len(self.faults), len(numbers))
        self.assertNotIn(0, numbers)

    def test_each_names_a_test_that_there_is_and_cases_of_it(self):
        for fault in self.faults:
            sources = mutant_tree.sources_of(fault.test, self.text)
            self.assertTrue(sources, f"{fault.place}: there is no {fault.test}")
            code = "\n".join(tree.text(source) for source in sources)
            self.assertTrue(self.has_case(code, fault.case),
                            f"{fault.place}: {fault.case} matches no case of {fault.test}")

    def test_a_filter_matches_cases_with_and_without_parameters(self):
        text = 'TEST_F(ATest, Works) {}\nTEST_P(ManyTest, Work) {} ... return "Large";\n'
        for good in ("*Works", "ATest.Works", "*ManyTest.Work/Large", "*Large", "*Test*/0", "*"):
            self.assertTrue(self.has_case(text, good), good)
        for bad in ("*Work", "*Fails", "*ATest.Works/Large", "*ManyTest.Work/Small"):
            self.assertFalse(self.has_case(text, bad), bad)

    @staticmethod
    def text(name):
        return tree.text(name) if (tree.top() / name).is_file() else ""

    @classmethod
    def has_case(cls, text, gtest_filter):
        """Whether a case matches. A parameter's name is any word in quotes, or a digit."""
        parameters = {*re.findall(r'"(\w+)"', text), *"0123456789"}
        for kind, suite, case in cls.CASE.findall(text):
            name = f"{suite}.{case}"
            full = [name] if kind in ("TEST", "TEST_F") else [
                f"All/{name}/{parameter}" for parameter in parameters]
            if any(fnmatch.fnmatchcase(each, gtest_filter) for each in full):
                return True
        return False


class BlockTest(unittest.TestCase):
    def refused(self, text, *words):
        with self.assertRaises(mutant_blocks.BlockError) as raised:
            mutant_blocks.parse("a.txt", text)
        for word in ("a.txt:", *words):
            self.assertIn(word, str(raised.exception))

    def test_a_block_is_read_as_it_is_written(self):
        first, second = mutant_blocks.parse(
            "a.txt", "# Regions.\n\n" + BLOCK + "\n" +
            block(fault=" Other", text="\n    a();\n\n      b();", **{"with": "\n    c();"},
                  file=" rpc/a.cc\nalone: it is a declaration"))
        self.assertEqual(("RangeUnchecked", "a.txt:3", "*RefusesWhatIsBeyond", "", ""),
                         (first.name, first.place, first.case, first.replacement, first.alone))
        self.assertEqual(("a();\n\n  b();", "c();", "it is a declaration"),
                         (second.text, second.replacement, second.alone))

    def test_an_error_names_the_line_and_says_what_to_do(self):
        self.refused(block(case=" *A\nwhy: so"), "a.txt:5", "'case:'")
        self.refused("test: //tests/rpc:a_test\n", "a.txt:1", "'fault:'")
        self.refused("    code();\n", "a.txt:1", "'text:'")
        self.refused(BLOCK + "breaks: more\n", "a.txt:9", "second 'breaks:'")
        self.refused(BLOCK + "text:\n    b();\n", "a.txt:9", "second 'text:'")
        self.refused(block(text=" a();\n    a();"), "a.txt:6", "four spaces")
        self.refused(BLOCK.replace("    if", "  if"), "a.txt:7", "four spaces")
        self.refused(block(breaks=""), "a.txt:2", "'breaks:'")
        self.refused(block(fault=" range"), "a.txt:1", "CamelCase")
        self.refused(block(test=" tests/rpc:a"), "a.txt:1", "//tests/folder:name")
        self.refused(block(text=""), "a.txt:1", "'text:'")
        self.refused(block(**{"with": "\n    if(bytes>left)\n      return Refuse(bytes);"}),
                     "a.txt:1", "same")
        for key in mutant_blocks.LINES[1:-1] + mutant_blocks.CODE:
            missing = re.sub(rf"(?m)^{key}:.*\n(?:    .*\n)*", "", BLOCK)
            self.refused(missing, "a.txt:1", f"'{key}:'")

    def test_white_space_of_the_file_does_not_count(self):
        fault, = mutant_blocks.parse("a.txt", BLOCK)
        for text in ("  if (bytes > left) return Refuse(bytes);\n",
                     "  if (bytes >\n      left)\n    return Refuse(bytes);\n"):
            start, end = mutant_blocks.span(fault, f"f();\n{text}g();\n")
            self.assertEqual(text.strip(), f"f();\n{text}g();\n"[start:end])

    def test_a_text_that_is_not_there_or_there_twice_is_refused(self):
        fault, = mutant_blocks.parse("a.txt", BLOCK)
        line = "if (bytes > left) return Refuse(bytes);\n"
        for content, words in (("", "no such text"), (f"g{line[1:]}", "no such text"),
                               (f"\n{line}{line}", "lines 2, 3")):
            with self.assertRaises(mutant_blocks.BlockError) as raised:
                mutant_blocks.span(fault, content)
            self.assertIn(words, str(raised.exception))
            self.assertIn("a.txt:1", str(raised.exception))


class SwitchTest(unittest.TestCase):
    """The switch's part of a function, as "right | faulty" for an expression, and in braces for
    statements."""

    def planted(self, content, text, replacement):
        fault = mutant_blocks.Fault("A", "", "", "", "a.cc", text, replacement, "", "a.txt:1")
        source = mutant_switch.Source(content)
        found = mutant_switch.region(fault, source)
        if found is None:
            return None
        code = source.slice(found.first, found.behind)
        return f"{code} | {found.faulty}" if found.is_expression else (
            f"{{{code}}} {{{found.faulty}}}")

    def in_body(self, body, text, replacement):
        return self.planted(
            "#include <map>\nnamespace n {\nint C::F(int a) {\n" + body + "\n}\n}\n", text, replacement)

    def test_a_condition_is_an_expression(self):
        self.assertEqual("a > 1 && b | b",
                         self.in_body("if (a > 1 && b) { f(); }", "a > 1 && b", "b"))
        self.assertEqual("a | false", self.in_body(
            "if (x) { f(); } else if (a) { g(); }", "} else if (a) {", "} else if (false) {"))
        self.assertEqual("a | b", self.in_body("if (auto c = f(); a) g();", "a) g();", "b) g();"))
        self.assertEqual("i < n | false",
                         self.in_body("for (int i = 0; i < n; ++i) f();", "i < n", "false"))

    def test_so_are_an_argument_an_initializer_a_result_and_what_is_assigned(self):
        self.assertEqual("kA | kB", self.in_body("f(x, g<int, long>(1), kA);", "kA", "kB"))
        self.assertEqual("g<int, long>(1) | 2", self.in_body("f(x, g<int, long>(1));",
                                                             "g<int, long>(1)", "2"))
        self.assertEqual("a && b | a", self.in_body("const bool c = a && b;", "a && b", "a"))
        self.assertEqual("a ? b : c | c", self.in_body("return a ? b : c;", "a ? b : c", "c"))
        self.assertEqual("a | b", self.in_body("if (x) y |= a;", "y |= a", "y |= b"))
        self.assertEqual("a | b", self.in_body("return {.x = a, .y = 1};", ".x = a", ".x = b"))
        self.assertEqual("Most() | 0", self.planted("class C {\n  int n_ = Most();\n};\n",
                                                    "n_ = Most();", "n_ = 0;"))

    def test_statements_are_taken_whole(self):
        self.assertEqual("{if (a) f();} {}", self.in_body("if (a) f();\ng();", "if (a) f();", ""))
        self.assertEqual("{if (a) f();\nelse { h(); }} {f();}",
                         self.in_body("if (a) f();\nelse { h(); }\ng();",
                                      "if (a) f();\nelse { h(); }", "f();"))
        self.assertEqual("{f(); g();} {}", self.in_body("f(); g();\nh();", "f(); g();", ""))
        self.assertEqual("{f();} {}",
                         self.in_body("switch (a) { case 1: f(); break; }", "f();", ""))
        self.assertEqual("{switch (a) { case 1: f(); }} {switch (a) { case 1: case 2: f(); }}",
                         self.in_body("switch (a) { case 1: f(); }", "f();", "case 2: f();"))
        self.assertEqual("{f();} {}", self.in_body("auto g = [&] { f(); };", "f();", ""))
        self.assertEqual("{f();} {}", self.in_body("try { f(); } catch (...) { g(); }", "f();", ""))

    def test_added_statements_go_between_others(self):
        self.assertEqual("{} {return 1;}", self.in_body("f();\nint b = g();\nreturn b;",
                                                        "int b = g();", "return 1;\nint b = g();"))
        self.assertEqual("{return b;} {return 1; return b;}",
                         self.in_body("return b;", "return b;", "return 1; return b;"))

    def test_a_declaration_takes_the_rest_of_its_block(self):
        self.assertEqual(
            "{const Guard g(m);\nf();} {f();}",
            self.in_body("{\nconst Guard g(m);\nf();\n}\nh();", "const Guard g(m);", ""))
        self.assertEqual("{ASSIGN_OR_RETURN(int a, f());\ng(a);} {int a = 1;\ng(a);}",
                         self.in_body("ASSIGN_OR_RETURN(int a, f());\ng(a);",
                                      "ASSIGN_OR_RETURN(int a, f());", "int a = 1;"))

    def test_a_constant_takes_the_rest_of_its_block_and_no_switch_of_its_value(self):
        self.assertEqual("{const int bits = 52;\nf(bits);} {const int bits = 53;\nf(bits);}",
                         self.in_body("const int bits = 52;\nf(bits);", "bits = 52", "bits = 53"))
        self.assertEqual("{x_ = kMost;} {x_ = 0;}",
                         self.in_body("x_ = kMost;\ng();", "x_ = kMost;", "x_ = 0;"))

    def test_declarations_of_a_class_have_no_switch(self):
        self.assertIsNone(self.planted("class C {\n  int a_;\n  int b_;\n};\n", "int a_;", ""))
        self.assertIsNone(self.planted("namespace n {\nint F();\n}\n", "int F();", "long F();"))

    def test_code_in_comments_and_strings_is_none(self):
        self.assertEqual('{g("};");} {}', self.in_body('// f(); {\ng("};");', 'g("};");', ""))
        self.assertEqual("{f('}');} {}", self.in_body("/* } */ f('}');", "f('}');", ""))

    def test_switches_lie_within_one_another(self):
        content = "void F() {\n  if (a && b) f();\n  g();\n}\n"
        texts = [("Gone", "if (a && b) f();", ""), ("Half", "a && b", "a"), ("None", "a && b", "c"),
                 ("First", "g();", "h();\ng();")]
        faults = [mutant_blocks.Fault(name, "", "", "", "a.cc", text, replacement, "", "")
                  for name, text, replacement in texts]
        code, alone = mutant_switch.switched(faults, content)
        self.assertEqual([], alone)
        code = re.sub(r"\s+", " ", code.removeprefix(mutant_switch.PRELUDE))
        for name, _, _ in texts:
            code = code.replace(str(mutant_switch.number_of(name)), name)
        self.assertEqual(
            "void F() { if (VERBENA_FAULT(Gone)) { } else { if ((VERBENA_FAULT(Half) ? B(a ) : "
            "B((VERBENA_FAULT(None) ? B(c ) : B(a && b )) ))) f(); } "
            "if (VERBENA_FAULT(First)) { h(); } g(); } ",
            code.replace("static_cast<bool>", "B"))

    def test_a_fault_that_crosses_another_is_planted_alone(self):
        content = "void F() {\n  a();\n  b();\n  c();\n}\n"
        faults = [mutant_blocks.Fault(name, "", "", "", "a.cc", text, "", "", "")
                  for name, text in (("One", "a();\n  b();"), ("Two", "b();\n  c();"))]
        _, alone = mutant_switch.switched(faults, content)
        self.assertEqual(["Two"], [fault.name for fault in alone])


class CopyTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.top = pathlib.Path(directory.name) / "top"
        self.copy = pathlib.Path(directory.name) / "copy"
        (self.top / "rpc").mkdir(parents=True)
        (self.top / "tests/rpc").mkdir(parents=True)
        subprocess.run(["git", "init", "-q", str(self.top)], check=True)
        self.put("rpc/region.cc", "void F() {\n  if (bytes > left) return Refuse(bytes);\n}\n")
        self.put("tests/rpc/BUILD",
                 'cc_test(\n    name = "some_test",\n    srcs = ["some_test.cc"],\n)\n')
        self.put("tests/rpc/some_test.cc", "TEST(A, RefusesWhatIsBeyond) {}\n")
        self.put(".gitignore", "ignored\n")
        self.put("ignored", "")
        self.fault, = mutant_blocks.parse("a.txt", BLOCK)

    def put(self, name, text):
        (self.top / name).write_text(text)

    def test_the_copy_holds_what_is_not_committed_and_switches(self):
        copy = mutant_tree.MutantTree(self.top, self.copy)
        self.assertEqual([], copy.update([self.fault]))
        self.assertIn("VERBENA_FAULT(", (self.copy / "rpc/region.cc").read_text())
        self.assertTrue((self.copy / "tests/rpc/some_test.cc").exists())
        self.assertFalse((self.copy / "ignored").exists())
        copy.plant(self.fault)
        self.assertEqual("void F() {\n  \n}\n", (self.copy / "rpc/region.cc").read_text())

    def test_a_file_that_is_as_it_was_is_not_written_again(self):
        copy = mutant_tree.MutantTree(self.top, self.copy)
        copy.update([self.fault])
        before = (self.copy / "rpc/region.cc").stat().st_ino
        (self.top / "tests/rpc/some_test.cc").unlink()
        copy.update([self.fault])
        self.assertEqual(before, (self.copy / "rpc/region.cc").stat().st_ino)
        self.assertFalse((self.copy / "tests/rpc/some_test.cc").exists())

    def test_a_verdict_holds_until_block_file_or_test_changes(self):
        def is_caught(text=BLOCK):
            fault, = mutant_blocks.parse("a.txt", text)
            return mutant_tree.Verdicts(self.top, self.top / "caught").caught(fault)

        self.assertFalse(is_caught())
        mutant_tree.Verdicts(self.top, self.top / "caught").note_caught(self.fault)
        self.assertTrue(is_caught())
        self.assertFalse(is_caught(block(case=" *Other")))
        for name in ("rpc/region.cc", "tests/rpc/some_test.cc"):
            text = (self.top / name).read_text()
            self.put(name, text + "\n")
            self.assertFalse(is_caught(), name)
            self.put(name, text)
            self.assertTrue(is_caught(), name)

    def test_a_verdict_is_of_the_files_that_were_tested(self):
        verdicts = mutant_tree.Verdicts(self.top, self.top / "caught")
        verdicts.read([self.fault])
        tested = (self.top / "rpc/region.cc").read_text()
        self.put("rpc/region.cc", tested + "\n")  # while the test runs
        verdicts.note_caught(self.fault)
        again = mutant_tree.Verdicts(self.top, self.top / "caught")
        self.assertFalse(again.caught(self.fault))
        self.put("rpc/region.cc", tested)
        self.assertTrue(again.caught(self.fault))


class ChoiceTest(unittest.TestCase):
    FAULTS = [mutant_blocks.Fault(name, "", "", "", "", "", "", "", "") for name in "ABCDEFGH"]

    def choose(self, *words, caught=""):
        class Verdicts:
            def caught(self, fault):
                return fault.name in caught

        def refuse(text):
            raise ValueError(text)

        with contextlib.redirect_stdout(io.StringIO()) as said:
            options = mutants.parser().parse_args(words)
            found = mutants.choose(self.FAULTS, options, Verdicts(), refuse)
        return "".join(fault.name for fault in found), said.getvalue()

    def test_all_are_taken_or_those_that_are_named(self):
        self.assertEqual("ABCDEFGH", self.choose()[0])
        self.assertEqual("BF", self.choose("F", "B")[0])
        with self.assertRaisesRegex(ValueError, "there is no fault 'X'"):
            self.choose("X")

    def test_changed_ones_are_those_that_were_not_caught_as_they_are(self):
        self.assertEqual("ACEG", self.choose("--changed", caught="BDFH")[0])

    def test_a_seed_without_a_sample_and_an_empty_sample_are_refused(self):
        with self.assertRaisesRegex(ValueError, "--seed is for --sample"):
            self.choose("--seed", "3")
        with self.assertRaisesRegex(ValueError, "from 1 on"):
            self.choose("--sample", "0")

    def test_a_sample_prints_its_seed_and_has_it_again(self):
        found, said = self.choose("--sample", "3")
        self.assertEqual(3, len(found))
        seed = re.search(r"--seed (\d+)", said).group(1)
        self.assertEqual(found, self.choose("--sample", "3", "--seed", seed)[0])
        self.assertEqual("ABCDEFGH", self.choose("--sample", "99")[0])


class VerdictTest(unittest.TestCase):
    """A build whose tests are a table."""

    class Build:
        def __init__(self, results):
            self.results = results
            self.runs = []

        def program(self, target):
            return target

        def run(self, target, cases, planted=None):
            self.runs.append((cases, planted))
            return self.results[cases if planted is None else planted]

    FAULT, = mutant_blocks.parse("a.txt", block(fault=" One", case=" *Works"))
    ONE = bazel_events.Outcome(passed=1)

    def test_a_fault_is_caught_if_its_test_fails_or_hangs_with_it_alone(self):
        for status, caught in (("failed", True), ("timeout", True), ("passed", False)):
            build = self.Build({7: (status, self.ONE), "*Works": ("passed", self.ONE)})
            self.assertEqual(caught, mutants.verdict(build, self.FAULT, 7)[0])
            self.assertEqual(("*Works", 7), build.runs[0])

    def test_a_case_that_also_fails_without_the_fault_catches_nothing(self):
        for without in (("failed", self.ONE), ("timeout", self.ONE),
                        ("passed", bazel_events.Outcome())):  # no such case
            build = self.Build({7: ("failed", self.ONE), "*Works": without})
            caught, words = mutants.verdict(build, self.FAULT, 7)
            self.assertFalse(caught)
            self.assertIn("does not pass without the fault", words)

    def test_a_build_that_has_the_fault_does_not_tell_how_it_is_without(self):
        build = self.Build({0: ("failed", self.ONE), "*Works": ("failed", self.ONE)})
        self.assertFalse(mutants.passes_without(build, self.FAULT))
        self.assertTrue(mutants.verdict(build, self.FAULT, 0, passes=True)[0])
        self.assertFalse(mutants.verdict(build, self.FAULT, 0, passes=False)[0])


if __name__ == "__main__":
    case_report.main()

#!/usr/bin/env python3
"""No coroutine takes a parameter by rvalue reference, which would dangle once its caller goes on."""

import os
import sys
import unittest

sys.path[:0] = [os.path.abspath("tests/repository"), os.path.abspath("tools/dev")]
import case_report
import rvalues
import tree


class RvaluesTest(unittest.TestCase):
    maxDiff = None  # each finding is shown

    def refused(self, text, words, line=1):
        found = rvalues.check("a.cc", text)
        self.assertEqual(1, len(found), found or text)
        self.assertTrue(found[0].startswith(f"a.cc:{line}: "), found[0])
        self.assertIn(words, found[0])

    def accepted(self, text):
        self.assertEqual([], rvalues.check("a.cc", text), text)

    def test_no_file_has_such_a_coroutine(self):
        files = [name for name in tree.files() if rvalues.is_checked(name)]
        self.assertIn("transport/coro/combinators.h", files)
        self.assertEqual([], [message for name in files for message in rvalues.check(name, tree.text(name))])

    def test_a_parameter_by_rvalue_reference_is_refused(self):
        self.refused("Task<void> F(std::string&& name) { co_await G(name); }", "take 'std::string&& name' by value")
        self.refused("\nGenerator<int> F(int a,\n                 Map<int, int>&& b) {\n  co_yield a;\n}", "Map", line=2)
        self.refused("template <typename... T>\nTask<int> F(T&&... t) { co_return (t + ...); }", "T&&... t", line=2)
        self.refused("Task<int> A::F(X&& x) const {\n  if (x.ok()) {\n    co_return 1;\n  }\n}", "X&& x")
        self.refused("Task<int> F(X&& x)\n  requires Is<X>\n{ co_return 1; }", "X&& x")
        self.refused("Task<int> F(X&&) noexcept(G()) { co_return 1; }", "'X&&'")
        self.refused("Task<int> F(X&& x = X()) { try { co_await G(); } catch (...) {} co_return 1; }", "X&& x")

    def test_so_is_one_of_a_lambda(self):
        self.refused("void F() {\n  scope.Spawn([&a, b = G(1)](X&& x) -> Task<void> { co_await H(x); });\n}", "X&& x",
                     line=2)
        self.refused("auto f = [](auto&& x) mutable -> Task<std::vector<int>> { co_return x; };", "auto&& x")
        self.refused("Task<int> F(int a) { auto f = [](X&& x) -> Task<void> { co_return; }; co_await f({}); }", "X&& x")

    def test_so_is_a_member_for_rvalues(self):
        self.refused("Task<int> A::F() && { co_return 1; }", "member for rvalues")
        self.refused("Task<int> A::F(int a) && noexcept { co_return a; }", "member for rvalues")

    def test_others_are_accepted(self):
        self.accepted("Task<void> F(std::string name, const X& x, Y& y) { co_await G(name); }")
        self.accepted("Task<void> F(std::string&& name) { return G(std::move(name)); }")
        self.accepted("Task<void> F(std::string&& name);")
        self.accepted("Task<void> F(std::function<void(X&&)> f, Map<X&&> map) { co_await f(X()); }")
        self.accepted("Task<void> F(bool both = A && B) { co_return; }")
        self.accepted("void F(X&& x) { Spawn([y = std::move(x)]() -> Task<void> { co_await y; }); }")
        self.accepted("Task<bool> F() { while (a && b) { co_await G(); } co_return a && b; }")
        self.accepted("Task<bool> F() { for (auto&& each : all) { co_await each; } co_return true; }")
        self.accepted("template <typename A>\ndecltype(auto) G(A&& a) { return std::forward<A>(a).operator co_await(); }")
        self.accepted("// Task<void> F(X&& x) { co_await x; }")
        self.accepted("// NOLINTBEGIN(rvalues)\nTask<void> F(X&& x) { co_await x; }\n// NOLINTEND(rvalues)")


if __name__ == "__main__":
    case_report.main()

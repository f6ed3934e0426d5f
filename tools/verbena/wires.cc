#include "tools/verbena/wires.h"

#include <string_view>
#include <vector>

#include "absl/strings/str_join.h"
#include "fmt/format.h"

namespace verbena::doctor {
namespace {

std::string YesOr(const absl::Status& status) {
  return status.ok() ? "yes" : fmt::format("no ({})", std::string(status.message()));
}

std::string NamespacesOf(const SharingFacts& facts) {
  std::vector<std::string> each;
  each.reserve(facts.namespaces.size());
  for (const auto& [name, number] : facts.namespaces) {
    each.push_back(fmt::format("{} {}", name, number.empty() ? "unknown" : number));
  }
  return absl::StrJoin(each, ", ");
}

std::string NetworkOf(const SharingFacts& facts) {
  const auto found = facts.namespaces.find("net");
  return found == facts.namespaces.end() || found->second.empty() ? "" : " " + found->second;
}

// How payloads travel that lie in other memory than that of Verbena's pools.
std::string OtherPayloads(const SharingFacts& facts) {
  if (!facts.process_handle.ok()) {
    return "go through a ring in pieces: the kernel gives no descriptor of another process";
  }
  if (facts.read_other.ok() && facts.write_other.ok()) {
    return "are copied by the kernel, if they have 8 KiB or more";
  }
  // From 1 on Yama lets a process reach into its descendants at most.
  const bool by_yama = facts.ptrace_scope.value_or(0) >= 1;
  return fmt::format(
      "go through a ring in pieces: the kernel lets no process reach into another{}",
      by_yama ? fmt::format(" (kernel.yama.ptrace_scope is {})", *facts.ptrace_scope) : "");
}

void Say(std::string_view line, std::string& out) { out += fmt::format("  - {}\n", line); }

}  // namespace

std::string DescribeWires(const SharingFacts& facts) {
  std::string out = "two processes of this host\n";
  out += fmt::format("  user              {}\n", facts.user);
  out += fmt::format("  namespaces        {}\n", NamespacesOf(facts));
  out += fmt::format("  memory to share   {}\n", YesOr(facts.memory));
  out += fmt::format("  pidfd_open        {}\n", YesOr(facts.process_handle));
  out += fmt::format("  process_vm_readv  {}\n", YesOr(facts.read_other));
  out += fmt::format("  process_vm_writev {}\n", YesOr(facts.write_other));
  out += fmt::format("  ptrace scope      {}\n", facts.ptrace_scope.has_value()
                                                     ? fmt::format("{}", *facts.ptrace_scope)
                                                     : "none (no Yama)");
  if (!facts.memory.ok()) {
    Say("where this process runs, none shares memory, and TCP takes its place: allow memfd_create "
        "and F_ADD_SEALS for more",
        out);
    return out;
  }
  Say(fmt::format("both of user {} and in network namespace{}: shared memory", facts.user,
                  NetworkOf(facts)),
      out);
  Say("of two users: TCP, because memory is shared within one user alone", out);
  Say("in two network namespaces: TCP, because one does not find the other's device by its name",
      out);
  Say("in two PID, IPC, mount or time namespaces: shared memory, and so in two user namespaces, if "
      "they are one user of the host",
      out);
  Say(fmt::format("payloads outside Verbena's pools {}", OtherPayloads(facts)), out);
  Say("if one does not see the other's process id (two PID namespaces), they go through the ring, "
      "too",
      out);
  return out;
}

}  // namespace verbena::doctor

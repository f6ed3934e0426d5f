// SharingFacts: what decides which wire two processes of this host take: whose they are, the
// namespaces that they see, and what the kernel lets them share.

#ifndef VERBENA_TOOLS_VERBENA_SHARING_FACTS_H_
#define VERBENA_TOOLS_VERBENA_SHARING_FACTS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace verbena::doctor {

struct SharingFacts {
  uint32_t user = 0;
  std::map<std::string, std::string> namespaces;  // of this process: "net" -> "4026531840"
  std::optional<uint64_t> ptrace_scope;           // kernel.yama.ptrace_scope; none: no Yama
  // OK, or why the kernel refuses it to this process:
  absl::Status memory;          // memory that others may map: a memfd with seals
  absl::Status process_handle;  // a descriptor of another process (pidfd_open)
  absl::Status read_other;      // process_vm_readv of a process that is no child of the reader,
  absl::Status write_other;     // and process_vm_writev
};

// Reads the facts of this process. Forks, so the caller has no other threads.
SharingFacts ReadSharingFacts();

}  // namespace verbena::doctor

#endif  // VERBENA_TOOLS_VERBENA_SHARING_FACTS_H_

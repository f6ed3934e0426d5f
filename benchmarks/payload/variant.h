// Variant: how payloads are protected, moved and waited for, as --variant names it.

#ifndef VERBENA_BENCHMARKS_PAYLOAD_VARIANT_H_
#define VERBENA_BENCHMARKS_PAYLOAD_VARIANT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "verbena/rpc/runtime.h"
#include "verbena/transport/executor/options.h"
#include "verbena/transport/link/limits.h"

namespace verbena::benchmarks {

// For which requests' payloads the server grants landings in advance.
enum class Grants { kAuto, kAll, kNone };

// Which payloads travel in frames: those of the default size, up to 16 KiB in larger frames, or
// none.
enum class InFrame { kAuto, kLarge, kNone };

struct Variant {
  std::string name;
  LeaseLevel leases = LeaseLevel::kStrict;
  PayloadChecksum checksum = PayloadChecksum::kOff;
  Grants grants = Grants::kAuto;  // makes a difference to writes only
  InFrame in_frame = InFrame::kAuto;
  ExecutorMode mode = ExecutorMode::kBusy;
  bool one_sided = false;
};

inline constexpr char kVariantHelp[] =
    "  --variant V[,V]      NAME or NAME:MODE (default strict,strict:adaptive,region,crc,granted,\n"
    "                       ungranted,one_sided). NAME tells how payloads are protected and "
    "moved:\n"
    "                         strict     by memory windows, without checksums\n"
    "                         region     by promises, without checksums\n"
    "                         crc        as strict, with checksums\n"
    "                         framed     as strict, and up to 16 KiB travel in frames\n"
    "                         leased     as strict, and nothing travels in frames\n"
    "                         granted    as leased, and the client writes all payloads\n"
    "                         ungranted  as leased, and the server reads all payloads\n"
    "                         one_sided  as strict, by RemoteMemory in place of calls\n"
    "                         auto       as LinkLimits chooses for the device\n"
    "                         plain      so too, without checksums\n"
    "                       MODE is that of the executors: busy (default), adaptive, event\n";

// Parses `text`, a list as in kVariantHelp. InvalidArgument names the word that is no variant.
absl::StatusOr<std::vector<Variant>> ParseVariants(const std::string& text);

std::vector<Variant> DefaultVariants();

// The options of a runtime that is pinned to `core` and has `bytes` for each of MemoryBudgets.
RuntimeOptions RuntimeOf(const Variant& variant, size_t bytes, int core);

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_PAYLOAD_VARIANT_H_

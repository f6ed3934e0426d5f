#include "verbena/benchmarks/payload/variant.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "verbena/benchmarks/harness/mode.h"

namespace verbena::benchmarks {
namespace {

constexpr char kDefault[] = "strict,strict:adaptive,region,crc,granted,ungranted,one_sided";

const std::vector<Variant>& Named() {
  static const std::vector<Variant> variants = {
      {.name = "strict"},
      {.name = "region", .leases = LeaseLevel::kRegion},
      {.name = "crc", .checksum = PayloadChecksum::kOn},
      {.name = "framed", .in_frame = InFrame::kLarge},
      {.name = "leased", .in_frame = InFrame::kNone},
      {.name = "granted", .grants = Grants::kAll, .in_frame = InFrame::kNone},
      {.name = "ungranted", .grants = Grants::kNone, .in_frame = InFrame::kNone},
      {.name = "one_sided", .one_sided = true},
      {.name = "auto", .leases = LeaseLevel::kAuto, .checksum = PayloadChecksum::kAuto},
      {.name = "plain", .leases = LeaseLevel::kAuto},
  };
  return variants;
}

std::string Names() {
  std::vector<std::string> names;
  for (const Variant& variant : Named()) names.push_back(variant.name);
  return absl::StrJoin(names, ", ");
}

absl::StatusOr<Variant> ParseVariant(const std::string& word) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(word, absl::MaxSplits(':', 1));
  const auto variant = std::find_if(Named().begin(), Named().end(),
                                    [&](const Variant& each) { return each.name == parts.first; });
  const bool names_mode = word.find(':') != std::string::npos;
  const absl::StatusOr<ExecutorMode> mode = ParseMode(names_mode ? parts.second : "busy");
  if (variant == Named().end() || !mode.ok()) {
    return absl::InvalidArgumentError(fmt::format(
        "--variant is '{}', but must be one of {}, each with :busy, :adaptive or :event "
        "behind it if wanted",
        word, Names()));
  }
  Variant chosen = *variant;
  chosen.mode = *mode;
  return chosen;
}

}  // namespace

absl::StatusOr<std::vector<Variant>> ParseVariants(const std::string& text) {
  std::vector<Variant> chosen;
  for (const std::string& word : std::vector<std::string>(absl::StrSplit(text, ','))) {
    absl::StatusOr<Variant> variant = ParseVariant(word);
    if (!variant.ok()) return variant.status();
    chosen.push_back(*std::move(variant));
  }
  return chosen;
}

std::vector<Variant> DefaultVariants() { return *ParseVariants(kDefault); }

RuntimeOptions RuntimeOf(const Variant& variant, size_t bytes, int core) {
  RuntimeOptions runtime{.mode = variant.mode, .cpus = {core}, .threads = false};
  runtime.limits.leases.level = variant.leases;
  runtime.limits.payload_checksum = variant.checksum;
  if (variant.grants == Grants::kAll) {
    runtime.limits.leases.largest_grant_bytes = runtime.limits.max_payload_bytes;
  }
  if (variant.in_frame == InFrame::kLarge) {
    runtime.limits.eager_bytes = (16 << 10) + 512;
    runtime.limits.largest_payload_in_frame = 16 << 10;
  }
  if (variant.in_frame == InFrame::kNone) runtime.limits.largest_payload_in_frame = 1;
  if (variant.grants == Grants::kNone) runtime.limits.leases.granted_bytes_per_client = 0;
  runtime.limits.memory = {.send_bytes = bytes, .receive_bytes = bytes, .landing_bytes = bytes};
  return runtime;
}

}  // namespace verbena::benchmarks

#include "verbena/benchmarks/payload/variant.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_split.h"

namespace verbena::benchmarks {
namespace {

constexpr char kDefault[] = "strict,strict:adaptive,region,crc,granted,ungranted,one_sided";

constexpr std::array<std::pair<const char*, ExecutorMode>, 3> kModes = {
    {{"busy", ExecutorMode::kBusy},
     {"adaptive", ExecutorMode::kAdaptive},
     {"event", ExecutorMode::kEvent}}};

const std::vector<Variant>& Named() {
  static const std::vector<Variant> variants = {
      {.name = "strict"},
      {.name = "region", .leases = LeaseLevel::kRegion},
      {.name = "crc", .checksum = PayloadChecksum::kOn},
      {.name = "granted", .grants = Grants::kAll},
      {.name = "ungranted", .grants = Grants::kNone},
      {.name = "one_sided", .one_sided = true},
      {.name = "auto", .leases = LeaseLevel::kAuto, .checksum = PayloadChecksum::kAuto},
      {.name = "plain", .leases = LeaseLevel::kAuto},
  };
  return variants;
}

absl::StatusOr<Variant> ParseVariant(const std::string& word) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(word, absl::MaxSplits(':', 1));
  const auto variant = std::find_if(Named().begin(), Named().end(),
                                    [&](const Variant& each) { return each.name == parts.first; });
  const std::string mode_name = word.find(':') == std::string::npos ? "busy" : parts.second;
  const auto* const mode = std::find_if(kModes.begin(), kModes.end(),
                                        [&](const auto& each) { return each.first == mode_name; });
  if (variant == Named().end() || mode == kModes.end()) {
    return absl::InvalidArgumentError(
        fmt::format("--variant is '{}'; see --help for those there are", word));
  }
  Variant chosen = *variant;
  chosen.mode = mode->second;
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

std::string ModeName(ExecutorMode mode) {
  const auto* const found = std::find_if(kModes.begin(), kModes.end(),
                                         [&](const auto& each) { return each.second == mode; });
  return found->first;
}

RuntimeOptions RuntimeOf(const Variant& variant, size_t bytes, int core) {
  RuntimeOptions runtime{.mode = variant.mode, .cpus = {core}, .threads = false};
  runtime.limits.leases.level = variant.leases;
  runtime.limits.payload_checksum = variant.checksum;
  if (variant.grants == Grants::kAll) {
    runtime.limits.leases.largest_grant_bytes = runtime.limits.max_payload_bytes;
  }
  if (variant.grants == Grants::kNone) runtime.limits.leases.granted_bytes_per_link = 0;
  runtime.limits.memory = {.send_bytes = bytes, .receive_bytes = bytes, .landing_bytes = bytes};
  return runtime;
}

}  // namespace verbena::benchmarks

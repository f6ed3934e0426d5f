#include "verbena/transport/soft/options.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <system_error>
#include <vector>

#include "fmt/format.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/device/verbs_status.h"
#include "verbena/transport/soft/ring.h"

namespace verbena::internal {
namespace {

struct Feature {
  std::string_view name;
  bool SoftProfile::* member;
};

struct Limit {
  std::string_view name;
  uint32_t SoftProfile::* member;
  uint32_t least;
};

constexpr Feature kFeatures[] = {
    {"reliable_connections", &SoftProfile::reliable_connections},
    {"srq", &SoftProfile::srq},
    {"srq_limit_event", &SoftProfile::srq_limit_event},
    {"last_wqe_event", &SoftProfile::last_wqe_event},
    {"send_with_immediate", &SoftProfile::send_with_immediate},
    {"write_with_immediate", &SoftProfile::write_with_immediate},
    {"atomics", &SoftProfile::atomics},
    {"memory_windows", &SoftProfile::memory_windows},
    {"flushes_in_error", &SoftProfile::flushes_in_error},
};

constexpr Limit kLimits[] = {
    {"max_inline_bytes", &SoftProfile::max_inline_bytes, 0},
    {"max_sge", &SoftProfile::max_sge, 1},
    {"max_qp", &SoftProfile::max_qp, 1},
    {"max_qp_wr", &SoftProfile::max_qp_wr, 1},
    {"max_cqe", &SoftProfile::max_cqe, 1},
    {"max_srq_wr", &SoftProfile::max_srq_wr, 1},
    {"max_qp_rd_atom", &SoftProfile::max_qp_rd_atom, 0},
    {"max_qp_init_rd_atom", &SoftProfile::max_qp_init_rd_atom, 0},
    {"mtu", &SoftProfile::mtu, 256},
};

constexpr SoftProfile kFull;
static_assert(kFull.max_inline_bytes == soft::kMaxInlineBytes);
static_assert(kFull.max_sge == soft::kMaxSge);
static_assert(kFull.max_qp == soft::kMaxQueuePairs);

bool IsMtu(uint32_t bytes) { return bytes >= 256 && bytes <= 4096 && (bytes & (bytes - 1)) == 0; }

std::string Allowed(const Limit& limit) {
  if (limit.member == &SoftProfile::mtu) return "256, 512, 1024, 2048 or 4096";
  return fmt::format("a number from {} to {}", limit.least, kFull.*limit.member);
}

bool IsAllowed(const Limit& limit, uint32_t value) {
  if (limit.member == &SoftProfile::mtu) return IsMtu(value);
  return value >= limit.least && value <= kFull.*limit.member;
}

std::string_view Strip(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r";
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

bool IsNumber(std::string_view text, uint32_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

std::string AllKeys() {
  std::string keys;
  for (const Feature& feature : kFeatures)
    fmt::format_to(std::back_inserter(keys), "{}, ", feature.name);
  for (const Limit& limit : kLimits) fmt::format_to(std::back_inserter(keys), "{}, ", limit.name);
  keys.resize(keys.size() - 2);
  return keys;
}

// Sets the member `key`. "" or what is wrong.
std::string Set(std::string_view key, std::string_view value, SoftProfile& profile) {
  for (const Feature& feature : kFeatures) {
    if (feature.name != key) continue;
    if (value != "true" && value != "false") {
      return fmt::format("{} is \"{}\", but must be true or false", key, value);
    }
    profile.*feature.member = value == "true";
    return "";
  }
  for (const Limit& limit : kLimits) {
    if (limit.name != key) continue;
    uint32_t number = 0;
    if (!IsNumber(value, number) || !IsAllowed(limit, number)) {
      return fmt::format("{} is \"{}\", but must be {}", key, value, Allowed(limit));
    }
    profile.*limit.member = number;
    return "";
  }
  return fmt::format("there is no key \"{}\"; the keys are {}", key, AllKeys());
}

}  // namespace

absl::StatusOr<SoftProfile> SoftProfile::Parse(std::string_view text, std::string_view file) {
  SoftProfile profile;
  std::vector<std::string_view> seen;
  int number = 0;
  while (!text.empty()) {
    ++number;
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const std::string_view content = Strip(line.substr(0, line.find('#')));
    if (content.empty()) continue;
    const size_t equals = content.find('=');
    const std::string_view key = Strip(content.substr(0, equals));
    std::string wrong;
    if (equals == std::string_view::npos) {
      wrong = fmt::format("\"{}\" is not of the form key = value", content);
    } else if (std::find(seen.begin(), seen.end(), key) != seen.end()) {
      wrong = fmt::format("{} is set a second time; one line for each key is allowed", key);
    } else {
      wrong = Set(key, Strip(content.substr(equals + 1)), profile);
    }
    if (!wrong.empty()) {
      return absl::InvalidArgumentError(
          fmt::format("soft device profile {}, line {}: {}", file, number, wrong));
    }
    seen.push_back(key);
  }
  return profile;
}

absl::StatusOr<SoftProfile> SoftProfile::Load(const std::string& path) {
  errno = 0;
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  // An empty file fails the output as well, but sets no errno; a folder is opened like a file, and
  // fails when it is read.
  if (!file.good() || (text.fail() && errno != 0)) {
    return ErrnoStatus(errno != 0 ? errno : EIO,
                       fmt::format("reading soft device profile {}", path));
  }
  return Parse(text.str(), path);
}

absl::StatusOr<SoftProfile> SoftProfile::FromEnvironment() {
  const char* const path = std::getenv("VERBENA_SOFT_PROFILE");
  if (path == nullptr || *path == '\0') return SoftProfile{};
  absl::StatusOr<SoftProfile> profile = Load(path);
  if (profile.ok()) return profile;
  return absl::Status(
      profile.status().code(),
      fmt::format("VERBENA_SOFT_PROFILE: {}", std::string(profile.status().message())));
}

absl::Status SoftProfile::Check() const {
  for (const Limit& limit : kLimits) {
    if (IsAllowed(limit, this->*limit.member)) continue;
    return absl::InvalidArgumentError(fmt::format("SoftProfile::{} is {}, but must be {}",
                                                  limit.name, this->*limit.member, Allowed(limit)));
  }
  return absl::OkStatus();
}

}  // namespace verbena::internal

namespace verbena::internal::soft {
namespace {

void AtMost(int& attribute, uint32_t limit) {
  attribute = std::min(attribute, static_cast<int>(limit));
}

// 256 bytes are IBV_MTU_256, which is 1.
ibv_mtu MtuOf(uint32_t bytes) {
  int code = IBV_MTU_256;
  while ((128u << code) < bytes && code < IBV_MTU_4096) ++code;
  return static_cast<ibv_mtu>(code);
}

}  // namespace

LaneGeometry LaneGeometryOf(const SoftDeviceOptions& options) {
  return {.request_lines = options.request_ring_bytes / uint32_t{kLineBytes},
          .answer_lines = options.answer_ring_bytes / uint32_t{kLineBytes}};
}

LaneGeometry TcpLaneGeometryOf(const SoftDeviceOptions& options) {
  const uint32_t least = options.tcp->least_ring_bytes / uint32_t{kLineBytes};
  const LaneGeometry geometry = LaneGeometryOf(options);
  return {.request_lines = std::max(geometry.request_lines, least),
          .answer_lines = std::max(geometry.answer_lines, least)};
}

void Withhold(const SoftProfile& profile, ibv_device_attr& attributes,
              DeviceCapabilities& capabilities) {
  AtMost(attributes.max_qp, profile.max_qp);
  AtMost(attributes.max_qp_wr, profile.max_qp_wr);
  AtMost(attributes.max_cqe, profile.max_cqe);
  AtMost(attributes.max_sge, profile.max_sge);
  AtMost(attributes.max_sge_rd, profile.max_sge);
  AtMost(attributes.max_srq_wr, profile.max_srq_wr);
  AtMost(attributes.max_srq_sge, profile.max_sge);
  if (!profile.srq) attributes.max_srq = attributes.max_srq_wr = attributes.max_srq_sge = 0;
  AtMost(attributes.max_qp_rd_atom, profile.max_qp_rd_atom);
  AtMost(attributes.max_qp_init_rd_atom, profile.max_qp_init_rd_atom);
  if (!profile.atomics) attributes.atomic_cap = IBV_ATOMIC_NONE;
  if (!profile.memory_windows) {
    attributes.max_mw = 0;
    attributes.device_cap_flags &= ~unsigned{IBV_DEVICE_MEM_WINDOW_TYPE_2B};
  }
  capabilities.max_inline_bytes = std::min(capabilities.max_inline_bytes, profile.max_inline_bytes);
  capabilities.srq &= profile.srq;
  capabilities.srq_limit_event &= profile.srq && profile.srq_limit_event;
  capabilities.last_wqe_event &= profile.srq && profile.last_wqe_event;
  capabilities.send_with_immediate &= profile.send_with_immediate;
  capabilities.write_with_immediate &= profile.write_with_immediate;
  capabilities.atomics &= profile.atomics;
  capabilities.memory_windows &= profile.memory_windows;
  capabilities.windows_checked &= profile.memory_windows;
  capabilities.flushes_in_error &= profile.flushes_in_error;
}

void Withhold(const SoftProfile& profile, ibv_port_attr& attributes) {
  attributes.max_mtu = std::min(attributes.max_mtu, MtuOf(profile.mtu));
  attributes.active_mtu = std::min(attributes.active_mtu, attributes.max_mtu);
}

uint32_t PostableOpcodes(const DeviceCapabilities& capabilities) {
  uint32_t opcodes = 1u << IBV_WR_SEND | 1u << IBV_WR_RDMA_WRITE | 1u << IBV_WR_RDMA_READ;
  if (capabilities.send_with_immediate) opcodes |= 1u << IBV_WR_SEND_WITH_IMM;
  if (capabilities.write_with_immediate) opcodes |= 1u << IBV_WR_RDMA_WRITE_WITH_IMM;
  if (capabilities.atomics) {
    opcodes |= 1u << IBV_WR_ATOMIC_CMP_AND_SWP | 1u << IBV_WR_ATOMIC_FETCH_AND_ADD;
  }
  if (capabilities.memory_windows) {
    opcodes |= 1u << IBV_WR_BIND_MW | 1u << IBV_WR_LOCAL_INV | 1u << IBV_WR_SEND_WITH_INV;
  }
  return opcodes;
}

int CheckWithinProfile(const SoftProfile& profile, const ibv_qp_attr& attributes, int mask) {
  if ((mask & IBV_QP_PATH_MTU) != 0 && attributes.path_mtu > MtuOf(profile.mtu)) return EINVAL;
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0 &&
      attributes.max_rd_atomic > profile.max_qp_init_rd_atom) {
    return EINVAL;
  }
  if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0 &&
      attributes.max_dest_rd_atomic > profile.max_qp_rd_atom) {
    return EINVAL;
  }
  return 0;
}

}  // namespace verbena::internal::soft

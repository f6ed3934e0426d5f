#include "verbena/rpc/call/metadata.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "fmt/format.h"
#include "verbena/rpc/call.h"
#include "verbena/transport/base/status.h"

namespace verbena {
namespace {

// Ahead of each entry's key and value.
struct EntryHeader {
  uint16_t key_bytes = 0;
  uint16_t value_bytes = 0;
};
static_assert(sizeof(EntryHeader) == Metadata::kEntryBytes);
static_assert(Metadata::kMaxBytes <= UINT16_MAX, "a value's length fits its field");

EntryHeader HeaderOf(std::string_view entries) {
  EntryHeader header;
  std::memcpy(&header, entries.data(), sizeof(header));
  return header;
}

bool IsKeyCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
}

bool IsReserved(std::string_view key) {
  return key.starts_with("verbena-") || key == "traceparent" || key == "tracestate";
}

// A key for an error's text: a short beginning of it, in printable ASCII.
std::string Shown(std::string_view key) {
  constexpr size_t kMostShown = 64;
  std::string shown;
  for (const char c : key.substr(0, kMostShown)) {
    const bool printable = c >= ' ' && c <= '~';
    shown += printable ? std::string(1, c) : fmt::format("\\x{:02x}", static_cast<uint8_t>(c));
  }
  if (key.size() > kMostShown) shown += "…";
  return shown;
}

}  // namespace

absl::Status Metadata::CheckEntry(std::string_view key, std::string_view value) {
  if (key.empty() || key.size() > kMaxKeyBytes ||
      !std::all_of(key.begin(), key.end(), IsKeyCharacter)) {
    return absl::InvalidArgumentError(
        fmt::format("the metadata key \"{}\" of {} bytes: a key has 1 to {} of the characters a-z, "
                    "0-9, '_', '-' and '.'",
                    Shown(key), key.size(), kMaxKeyBytes));
  }
  if (IsReserved(key)) {
    return absl::InvalidArgumentError(
        fmt::format("the metadata key \"{}\" is Verbena's own: choose another, or WithTrace() for "
                    "a trace",
                    Shown(key)));
  }
  if (key.ends_with("-bin")) return absl::OkStatus();
  const auto printable = [](char c) { return c >= ' ' && c <= '~'; };
  if (!std::all_of(value.begin(), value.end(), printable)) {
    return absl::InvalidArgumentError(
        fmt::format("the value of the metadata key \"{}\" is not printable ASCII: give bytes under "
                    "a key that ends in \"-bin\"",
                    Shown(key)));
  }
  return absl::OkStatus();
}

Metadata::Metadata(std::initializer_list<Entry> entries) {
  for (const auto& [key, value] : entries) Add(key, value);
}

Metadata::Metadata(const Metadata& other)
    : rep_(other.rep_ == nullptr ? nullptr : std::make_unique<Rep>(*other.rep_)) {}

Metadata::Rep& Metadata::rep() {
  if (rep_ == nullptr) rep_ = std::make_unique<Rep>();
  return *rep_;
}

Metadata& Metadata::Add(std::string_view key, std::string_view value) {
  Rep& rep = this->rep();
  if (!rep.status.ok()) return *this;
  rep.status = CheckEntry(key, value);
  if (!rep.status.ok()) return *this;
  const size_t room = kMaxBytes - rep.entries.size();
  if (value.size() > room || kEntryBytes + key.size() + value.size() > room) {
    rep.status = absl::ResourceExhaustedError(
        fmt::format("the metadata key \"{}\" and its value of {} bytes, behind {} bytes of "
                    "metadata: at most {} travel",
                    Shown(key), value.size(), rep.entries.size(), kMaxBytes));
    return *this;
  }
  const EntryHeader header{.key_bytes = static_cast<uint16_t>(key.size()),
                           .value_bytes = static_cast<uint16_t>(value.size())};
  rep.entries.append(reinterpret_cast<const char*>(&header), sizeof(header));
  rep.entries.append(key);
  rep.entries.append(value);
  return *this;
}

size_t Metadata::Remove(std::string_view key) {
  if (rep_ == nullptr) return 0;
  std::string kept;
  size_t removed = 0;
  for (const auto& [name, value] : *this) {
    if (name == key) {
      ++removed;
      continue;
    }
    const char* const entry = name.data() - kEntryBytes;
    kept.append(entry, kEntryBytes + name.size() + value.size());
  }
  rep_->entries = std::move(kept);
  return removed;
}

std::optional<std::string_view> Metadata::Get(std::string_view key) const {
  for (const auto& [name, value] : *this) {
    if (name == key) return value;
  }
  return std::nullopt;
}

std::vector<std::string_view> Metadata::All(std::string_view key) const {
  std::vector<std::string_view> values;
  for (const auto& [name, value] : *this) {
    if (name == key) values.push_back(value);
  }
  return values;
}

size_t Metadata::size() const { return static_cast<size_t>(std::distance(begin(), end())); }

void Metadata::Iterator::Read() {
  if (left_.empty()) {
    entry_ = {};
    return;
  }
  const EntryHeader header = HeaderOf(left_);
  entry_ = {left_.substr(kEntryBytes, header.key_bytes),
            left_.substr(kEntryBytes + header.key_bytes, header.value_bytes)};
}

namespace internal {

absl::Status MetadataCodec::Read(std::string_view bytes, Metadata& metadata) {
  if (bytes.size() > Metadata::kMaxBytes) {
    return absl::InvalidArgumentError(fmt::format(
        "{} bytes of metadata, of which at most {} travel", bytes.size(), Metadata::kMaxBytes));
  }
  for (std::string_view left = bytes; !left.empty();) {
    if (left.size() < sizeof(EntryHeader)) {
      return absl::InvalidArgumentError("an entry of metadata without its header");
    }
    const EntryHeader header = HeaderOf(left);
    left.remove_prefix(sizeof(header));
    const size_t entry_bytes = size_t{header.key_bytes} + header.value_bytes;
    if (entry_bytes > left.size()) {
      return absl::InvalidArgumentError(fmt::format(
          "an entry of metadata of {} bytes, where {} are left", entry_bytes, left.size()));
    }
    const std::string_view key = left.substr(0, header.key_bytes);
    VERBENA_RETURN_IF_ERROR(Metadata::CheckEntry(key, left.substr(key.size(), header.value_bytes)));
    left.remove_prefix(std::min(entry_bytes, left.size()));
  }
  metadata.Clear();
  if (!bytes.empty()) metadata.rep().entries = std::string(bytes);
  return absl::OkStatus();
}

}  // namespace internal
}  // namespace verbena

namespace verbena::internal {

uint32_t MethodIndex::Assign() const {
  static std::atomic<uint32_t> last{0};
  const uint32_t fresh = last.fetch_add(1, std::memory_order_relaxed) + 1;
  uint32_t value = 0;
  // Another thread may have been first.
  return value_.compare_exchange_strong(value, fresh, std::memory_order_relaxed) ? fresh : value;
}

}  // namespace verbena::internal

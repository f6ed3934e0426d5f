// Metadata: keys and values that travel beside a call's messages, from the caller to the handler,
// and as trailing metadata back.
//
// A multi-map in the order of Add(). A key has 1 to 255 of the characters a-z, 0-9, '_', '-' and
// '.'. A value is printable ASCII, or any bytes if the key ends in "-bin". Add() refuses keys that
// begin with "verbena-", and the keys "traceparent" and "tracestate", which Verbena uses. An entry
// counts as its key, its value and 4 bytes; all entries are bounded by kMaxBytes (32 KiB), and a
// call's by ChannelOptions::max_metadata_bytes and ServerOptions::max_metadata_bytes.
//
// Add() returns no error, so that a Metadata can be written in place. It leaves out an entry that
// it refuses, keeps the first such error as status(), and the call that is given this Metadata
// fails with it. A server's interceptor checks status() itself. A value; copies are deep. One
// thread at a time.
//
//   co_await stub.Get(request, {.metadata = {{"tenant", "blue"}, {"token-bin", token}}});
//
//   if (std::optional<std::string_view> tenant = context.metadata().Get("tenant")) …

#ifndef VERBENA_RPC_METADATA_H_
#define VERBENA_RPC_METADATA_H_

#include <cstddef>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace verbena {

namespace internal {
class MetadataCodec;
}  // namespace internal

class Metadata {
 public:
  // A key and its value.
  using Entry = std::pair<std::string_view, std::string_view>;

  static constexpr size_t kMaxBytes = 32 * 1024;
  static constexpr size_t kMaxKeyBytes = 255;
  static constexpr size_t kEntryBytes = 4;  // beside key and value

  class Iterator;

  Metadata() = default;
  Metadata(std::initializer_list<Entry> entries);
  Metadata(const Metadata& other);
  Metadata(Metadata&&) noexcept = default;
  Metadata& operator=(Metadata other) noexcept {
    rep_ = std::move(other.rep_);
    return *this;
  }
  ~Metadata() = default;

  Metadata& Add(std::string_view key, std::string_view value);
  // Removes all entries of `key`, and returns how many there were.
  size_t Remove(std::string_view key);
  // Forgets all entries, and status().
  void Clear() { rep_.reset(); }

  // The first value of `key`. Views are valid until the Metadata changes.
  std::optional<std::string_view> Get(std::string_view key) const;
  // All values of `key`, in order.
  std::vector<std::string_view> All(std::string_view key) const;
  Iterator begin() const;
  Iterator end() const;

  bool empty() const { return rep_ == nullptr || rep_->entries.empty(); }
  // The number of entries.
  size_t size() const;
  // The bytes of all entries, as the bounds count them.
  size_t bytes() const { return rep_ == nullptr ? 0 : rep_->entries.size(); }
  // OK, or why the first entry was refused: INVALID_ARGUMENT for its key or value, and
  // RESOURCE_EXHAUSTED beyond kMaxBytes. The message names the key.
  absl::Status status() const { return rep_ == nullptr ? absl::OkStatus() : rep_->status; }
  // Nothing was added, not even an entry that was refused.
  bool untouched() const { return rep_ == nullptr; }

  // Whether an entry may be sent: INVALID_ARGUMENT, which names the key, if it may not.
  static absl::Status CheckEntry(std::string_view key, std::string_view value);

 private:
  friend class internal::MetadataCodec;
  struct Rep {
    std::string entries;  // as they travel (proto/WIRE.md)
    absl::Status status;
  };
  Rep& rep();

  std::unique_ptr<Rep> rep_;  // null: nothing was added
};

class Metadata::Iterator {
 public:
  using iterator_category = std::forward_iterator_tag;
  using value_type = Entry;
  using difference_type = std::ptrdiff_t;
  using pointer = const Entry*;
  using reference = const Entry&;

  Iterator() = default;
  const Entry& operator*() const { return entry_; }
  const Entry* operator->() const { return &entry_; }
  Iterator& operator++() {
    left_.remove_prefix(kEntryBytes + entry_.first.size() + entry_.second.size());
    Read();
    return *this;
  }
  Iterator operator++(int) {
    Iterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const Iterator& other) const { return left_.size() == other.left_.size(); }

 private:
  friend class Metadata;
  explicit Iterator(std::string_view entries) : left_(entries) { Read(); }
  void Read();

  std::string_view left_;  // from this entry on
  Entry entry_;
};

inline Metadata::Iterator Metadata::begin() const {
  return rep_ == nullptr ? Iterator() : Iterator(rep_->entries);
}
inline Metadata::Iterator Metadata::end() const { return {}; }

namespace internal {

// The entries of a Metadata as bytes, and back. Pure functions.
class MetadataCodec {
 public:
  // The entries in the form in which they travel, bytes() long.
  static std::string_view EntriesOf(const Metadata& metadata) {
    return metadata.rep_ == nullptr ? std::string_view() : metadata.rep_->entries;
  }
  // Reads entries from a peer, which must fill `bytes` exactly. INVALID_ARGUMENT if they do not, or
  // if an entry may not be sent.
  static absl::Status Read(std::string_view bytes, Metadata& metadata);
};

}  // namespace internal
}  // namespace verbena

#endif  // VERBENA_RPC_METADATA_H_

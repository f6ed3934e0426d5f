// Names: the calls that a replica's data hold, by the names that DedupeTokens gave them
// (verbena/rpc/dedupe.h). They follow from the log, so each replica of a shard has the same; except
// that a copy, which is read while the log goes on, may lack clients that were forgotten meanwhile.
// So a copy says whether any client was. Entries come between its pages: a client whose entry comes
// before its page is unproven until the page has come.
//
// A client's names are one record beside the data, written in the batch of each write. It is short:
// a write says which numbers its client repeats no more, and these are dropped. Bounds: kMaxNames
// names of one client, and kMaxClients clients. A number that the client repeats no more, or
// that was pushed out, gives an error, never "not there". A client that has written nothing for
// long may be forgotten when there are too many. From then on a repeated call that is not there
// gives an error, too, if its client is not known, or was entered since and had given the call its
// number before. An entry tells the highest number that its client had given, if its request left
// the client after all writes that had been forgotten when the client was entered. Until there is
// such an entry, any number may have run before, since numbers need not come in the order in which
// a client gave them. One thread.
//
//   absl::StatusOr<std::optional<uint64_t>> sequence = names.Find(client, number);

#ifndef VERBENA_EXAMPLES_REPLICATED_KV_NAMES_H_
#define VERBENA_EXAMPLES_REPLICATED_KV_NAMES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/replicated_kv/limits.h"
#include "examples/replicated_kv/replicated_kv.pb.h"
#include "fmt/format.h"
#include "verbena/rpc/task.h"

namespace replicated_kv {

class Names {
 public:
  static constexpr size_t kMaxNames = 1024;
  static constexpr size_t kMaxClients = 4096;
  static constexpr uint64_t kKeepEntries = 100'000;

  // The place in the log of the call with that name, or none if the log has no such call.
  // OUT_OF_RANGE: its client has said that it repeats the call no more, or has too many names.
  absl::StatusOr<std::optional<uint64_t>> Find(std::string_view client, uint64_t number) const {
    const auto known = clients_.find(client);
    if (known == clients_.end()) return std::nullopt;
    if (number < known->second.over_below()) {
      return absl::OutOfRangeError(
          fmt::format("call {} may have run: its client's names below {} are dropped", number,
                      known->second.over_below()));
    }
    const auto found = known->second.names().find(number);
    if (found == known->second.names().end()) return std::nullopt;
    return found->second;
  }
  // Find() for a repeated call, whose client may have been forgotten.
  absl::StatusOr<std::optional<uint64_t>> FindRepeated(std::string_view client,
                                                       uint64_t number) const {
    const auto known = clients_.find(client);
    const uint64_t unproven_below = known == clients_.end() ? (has_forgotten() ? kAllNumbers : 0)
                                                            : UnprovenBelow(known->second);
    absl::StatusOr<std::optional<uint64_t>> found = Find(client, number);
    const bool is_there = !found.ok() || found->has_value();
    if (is_there || number >= unproven_below) return found;
    return absl::OutOfRangeError(
        fmt::format("call {} may have run: its client, or another one, was forgotten", number));
  }
  // Whether a client has room for the entry `sequence`. Entries up to `old` are so old that their
  // client may be forgotten.
  bool HasRoomFor(std::string_view client, uint64_t sequence, uint64_t old) const {
    if (!is_full() || clients_.contains(client)) return true;
    const uint64_t last = Idlest()->second.last_sequence();
    return last + kKeepEntries < sequence || last <= old;
  }

  // An entry of the log has been taken. Taking it twice changes nothing. Returns the client that
  // was forgotten to make room, if any.
  std::optional<std::string> Add(const v1::Entry& entry) {
    std::optional<std::string> forgotten;
    if (!clients_.contains(entry.client())) {
      if (is_full()) {
        forgotten = Idlest()->first;
        forgotten_up_to_ = std::max(forgotten_up_to_, Idlest()->second.last_sequence());
        clients_.erase(*forgotten);
        forgot_ = true;
      }
      if (forgot_ || IsAwaited(entry.client())) {
        v1::ClientNames& entered = clients_[entry.client()];
        entered.set_unproven_below(kAllNumbers);
        entered.set_entered_at(entry.sequence());
      }
    }
    v1::ClientNames& client = clients_[entry.client()];
    const bool is_open = client.unproven_below() != 0 && client.entered_below() == 0;
    // The record may come from a copy that has this entry and later ones already.
    const bool is_news = entry.sequence() > client.last_sequence();
    if (is_open && is_news && entry.highest() != 0 && !IsAwaited(entry.client())) {
      client.set_entered_below(entry.highest() + 1);
    }
    client.set_last_sequence(std::max(client.last_sequence(), entry.sequence()));
    client.set_over_below(std::max(client.over_below(), entry.acknowledged_below()));
    auto& names = *client.mutable_names();
    for (auto name = names.begin(); name != names.end();) {
      name = name->first < client.over_below() ? names.erase(name) : std::next(name);
    }
    if (entry.number() >= client.over_below()) names[entry.number()] = entry.sequence();
    if (names.size() > kMaxNames) {
      const auto lowest =
          std::min_element(names.begin(), names.end(),
                           [](const auto& a, const auto& b) { return a.first < b.first; });
      client.set_over_below(lowest->first + 1);
      names.erase(lowest);
    }
    return forgotten;
  }
  // The client's record as it is now.
  std::string RecordOf(std::string_view client) const {
    const auto known = clients_.find(client);
    return known == clients_.end() ? "" : known->second.SerializeAsString();
  }

  // A record that was written before. INVALID_ARGUMENT: it is damaged.
  absl::Status Load(std::string_view client, std::string_view record) {
    if (clients_[std::string(client)].ParseFromArray(record.data(),
                                                     static_cast<int>(record.size()))) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError("a record of a client's names does not parse");
  }
  void Clear() {
    clients_.clear();
    forgot_ = false;
    forgotten_up_to_ = 0;
    copied_to_.reset();
  }
  // The names of a copy come now, in pages, in the order of their clients.
  void BeginCopy() {
    Clear();
    copied_to_.emplace();
  }
  // The pages so far have all clients up to `client`. Empty: all clients.
  void NoteCopied(std::string_view client) {
    if (client.empty()) {
      copied_to_.reset();
    } else {
      copied_to_.emplace(client);
    }
  }
  // Whether a client may have been forgotten.
  bool has_forgotten() const { return forgot_ || is_full(); }
  // The last entry of the log that may hold a forgotten call of the client. Names that were
  // forgotten before Load() do not count: nothing is known of them.
  uint64_t forgotten_up_to(std::string_view client) const {
    const auto known = clients_.find(client);
    return known == clients_.end() ? forgotten_up_to_ : known->second.entered_at();
  }
  // The replica that these are copied from may have forgotten a client. They are full, and tell so
  // themselves, once the copy is whole.
  void NoteForgotten() { forgot_ = true; }

 private:
  // The bound of a client that came after any was forgotten. Earlier versions wrote the first
  // number that came instead.
  static constexpr uint64_t kAllNumbers = std::numeric_limits<uint64_t>::max();

  // The client's calls below this may have run and been forgotten.
  static uint64_t UnprovenBelow(const v1::ClientNames& client) {
    if (client.unproven_below() == 0) return 0;
    return client.entered_below() != 0 ? client.entered_below() : kAllNumbers;
  }
  bool is_full() const { return clients_.size() >= kMaxClients; }
  // Whether a page of the copy may still come with that client's names.
  bool IsAwaited(std::string_view client) const {
    return copied_to_.has_value() && client > *copied_to_;
  }
  // The client that has written nothing for the longest time.
  std::map<std::string, v1::ClientNames, std::less<>>::const_iterator Idlest() const {
    return std::min_element(clients_.begin(), clients_.end(), [](const auto& a, const auto& b) {
      return a.second.last_sequence() < b.second.last_sequence();
    });
  }

  std::map<std::string, v1::ClientNames, std::less<>> clients_;
  bool forgot_ = false;           // a client, here or where a copy comes from
  uint64_t forgotten_up_to_ = 0;  // no forgotten client has written anything after that entry
  // The last client whose names a copy has brought; none: no names are under way.
  std::optional<std::string> copied_to_;
};

// Which entries of a log are old: those that have been there for kKeepNames. It tells so after
// twice kKeepNames at most.
class LogAge {
 public:
  // The log's last entry is `last` now. Returns the last one that is known to be old; 0: none.
  uint64_t Old(uint64_t last, verbena::TimePoint now) {
    if (now - since_ >= kKeepNames) {
      old_ = std::exchange(last_, last);
      since_ = now;
    }
    return old_;
  }

 private:
  verbena::TimePoint since_{};
  uint64_t last_ = 0;  // at since_
  uint64_t old_ = 0;   // the last_ before this one
};

}  // namespace replicated_kv

#endif  // VERBENA_EXAMPLES_REPLICATED_KV_NAMES_H_

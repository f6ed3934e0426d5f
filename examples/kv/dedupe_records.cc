#include "examples/kv/dedupe_records.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/types/span.h"
#include "examples/kv/limits.h"
#include "fmt/format.h"
#include "verbena/rpc/status.h"

namespace kv {

using verbena::DedupeResult;
using verbena::RequestId;
using verbena::Task;

namespace {

// The record that says that names were dropped.
constexpr std::string_view kDropped = "dropped";
// The first byte of a name's record, before the reply: whether its client came after a drop, so
// that a restart, too, knows nothing of the client's other names. Records of the first version are
// replies alone. A reply is empty or begins with a tag, which none of these is.
constexpr char kClientKnown = 'k';
constexpr char kClientAnew = 'a';
// The client came after a drop. Names that were dropped have numbers below that of the eight bytes
// which follow.
// Earlier versions take such a record for a reply, and prove nothing of the client's other names:
// for their clients these nine bytes are a field that they do not know (15, fixed64).
constexpr char kClientEntered = '\x79';
constexpr size_t kIdBytes = sizeof(RequestId::client) + sizeof(uint64_t);

static_assert(DedupeRecords::kMaxRemoved + 2 <= kMaxRecords);

// A name's record.
struct StoredName {
  uint64_t entered_below = 0;
  bool is_anew = false;
  std::string_view reply;  // of the record
};

StoredName Parse(std::string_view record) {
  StoredName name{.is_anew = !record.starts_with(kClientKnown), .reply = record};
  if (record.starts_with(kClientKnown) || record.starts_with(kClientAnew)) {
    name.reply.remove_prefix(1);
  } else if (record.starts_with(kClientEntered) && record.size() > sizeof(name.entered_below)) {
    std::memcpy(&name.entered_below, record.data() + 1, sizeof(name.entered_below));
    name.is_anew = false;
    name.reply.remove_prefix(1 + sizeof(name.entered_below));
  }
  return name;
}

// Returns what a record says of its client. Numbers are little-endian, as in protobuf.
std::string PrefixOf(uint64_t entered_below, bool is_anew) {
  if (is_anew) return std::string(1, kClientAnew);
  if (entered_below == 0) return std::string(1, kClientKnown);
  std::string prefix(1 + sizeof(entered_below), kClientEntered);
  std::memcpy(prefix.data() + 1, &entered_below, sizeof(entered_below));
  return prefix;
}

// Orders the names of a client by their numbers.
std::string IdOf(const RequestId& name) {
  std::string id(name.client.begin(), name.client.end());
  for (int shift = 56; shift >= 0; shift -= 8) {
    id.push_back(static_cast<char>((name.number >> shift) & 0xff));
  }
  return id;
}

RequestId NameOf(const std::string& id) {
  RequestId name;
  std::memcpy(name.client.data(), id.data(), name.client.size());
  for (size_t i = name.client.size(); i < kIdBytes; ++i) {
    name.number = name.number << 8 | static_cast<uint8_t>(id[i]);
  }
  return name;
}

}  // namespace

Task<absl::Status> DedupeRecords::Load() {
  std::string bytes;
  const absl::Status dropped = co_await store_.GetRecord(kDropped, bytes);
  if (!dropped.ok() && !absl::IsNotFound(dropped)) co_return dropped;
  std::string next;
  do {
    VERBENA_CO_ASSIGN_OR_RETURN(ScanPage page, co_await store_.ScanRecords(next, kMaxValueBytes));
    std::lock_guard<std::mutex> lock(mutex_);
    dropped_ = dropped.ok();
    for (const StoreEntry& entry : page.entries) {
      if (entry.key.size() != kIdBytes) continue;
      const RequestId name = NameOf(entry.key);
      Client& client = ClientOf(name.client);
      names_ += client.numbers.insert(name.number).second ? 1 : 0;
      // In ascending order, so the last one counts. A crash may have left a part of a dropped
      // client's names, with the highest among them.
      if (dropped_) client.unproven_below = name.number + 1;
      const StoredName stored = Parse(entry.value);
      client.is_anew |= dropped_ && stored.is_anew;
      client.entered_below = std::max(client.entered_below, stored.entered_below);
      client.last = clock_.Now();
    }
    next = std::move(page.next_key);
  } while (!next.empty());
  co_return absl::OkStatus();
}

Task<absl::StatusOr<bool>> DedupeRecords::Write(StoreWrite write, Call call) {
  VERBENA_CO_ASSIGN_OR_RETURN(Changes changes, Begin(call));
  const std::string id = IdOf(call.name);
  std::vector<std::string> removed;
  for (const Removal& removal : changes.removals) {
    auto number = removal.numbers.begin();
    for (size_t i = 0; i < removal.in_write; ++i, ++number) {
      removed.push_back(IdOf({.client = removal.client, .number = *number}));
    }
  }
  const std::string if_new = changes.client + std::string(call.reply_if_new);
  const std::string if_existed = changes.client + std::string(call.reply_if_existed);
  std::vector<StoreRecord> records = {{.id = id, .bytes = if_new, .bytes_if_existed = if_existed}};
  for (const std::string& each : removed) records.push_back({.id = each});
  if (changes.dropped) records.push_back({.id = kDropped, .bytes = ""});
  write.records = records;
  bool stored = false;
  // Also if the handler is destroyed while the store writes: what was perhaps removed is removed
  // again.
  const absl::Cleanup end = [&] { End(std::move(changes), stored); };
  absl::StatusOr<bool> existed = co_await store_.Write(write);
  stored = existed.ok();
  co_return existed;
}

Task<absl::StatusOr<std::optional<DedupeResult>>> DedupeRecords::Lookup(RequestId name) {
  std::string record;
  absl::Status found = co_await store_.GetRecord(IdOf(name), record);
  if (found.ok()) co_return DedupeResult{.reply = std::string(Parse(record).reply)};
  if (!absl::IsNotFound(found)) co_return found;
  if (IsProven(name)) co_return std::nullopt;
  co_return absl::AbortedError(
      fmt::format("the store cannot tell whether the call has run: there were more than {} names "
                  "of calls, and it dropped those of clients that were idle. Get the key to see "
                  "what is there",
                  max_names_));
}

absl::StatusOr<DedupeRecords::Changes> DedupeRecords::Begin(const Call& call) {
  std::lock_guard<std::mutex> lock(mutex_);
  const verbena::TimePoint now = clock_.Now();
  const bool is_known = clients_.contains(call.name.client);
  Client& client = ClientOf(call.name.client);
  if (!is_known && dropped_) {
    client.is_anew = true;
    client.dropped_last = dropped_last_;
  }
  Prove(call, now, client);
  client.last = now;
  by_age_.splice(by_age_.end(), by_age_, client.age);
  Changes changes{.client = PrefixOf(client.entered_below, client.is_anew)};
  changes.removals.push_back(Acknowledge(call, client));
  size_t removed = changes.removals.back().in_write;
  if (client.numbers.size() >= max_names_ / 2) {
    if (removed > 0) leftovers_.push_back(std::move(changes.removals.back()));
    return verbena::WithOutcome(
        absl::ResourceExhaustedError(fmt::format(
            "the client has {} calls that it has not acknowledged: end the DedupeTokens of calls "
            "that are not repeated any more",
            client.numbers.size())),
        verbena::Outcome::kNotExecuted);
  }
  names_ += client.numbers.insert(call.name.number).second ? 1 : 0;
  while (names_ > max_names_) DropIdlest();
  while (removed < kMaxRemoved && !leftovers_.empty()) {
    Removal& next = changes.removals.emplace_back(std::move(leftovers_.front()));
    leftovers_.pop_front();
    next.in_write = std::min(next.numbers.size(), kMaxRemoved - removed);
    removed += next.in_write;
    changes.dropped = dropped_;
  }
  return changes;
}

void DedupeRecords::End(Changes changes, bool stored) {
  for (Removal& removal : changes.removals) {
    if (stored) {
      removal.numbers.erase(
          removal.numbers.begin(),
          std::next(removal.numbers.begin(), static_cast<std::ptrdiff_t>(removal.in_write)));
    }
    if (removal.numbers.empty()) continue;
    std::lock_guard<std::mutex> lock(mutex_);
    leftovers_.push_front(std::move(removal));
  }
}

DedupeRecords::Client& DedupeRecords::ClientOf(const ClientId& id) {
  const auto [found, added] = clients_.try_emplace(id);
  if (added) found->second.age = by_age_.insert(by_age_.end(), id);
  return found->second;
}

// A request that left the client after this one may have overtaken it. The name of that request may
// be dropped already, if a client was dropped that wrote since this one left. All that was dropped
// before Load() is older than any link, and so than any request.
void DedupeRecords::Prove(const Call& call, verbena::TimePoint now, Client& client) {
  if (!client.is_anew || call.highest == 0) return;
  if (client.dropped_last.has_value() && now - *client.dropped_last <= kMostUnderWay) return;
  client.entered_below = std::max(client.entered_below, call.highest + 1);
  client.is_anew = false;
}

DedupeRecords::Removal DedupeRecords::Acknowledge(const Call& call, Client& client) {
  Removal removal{.client = call.name.client, .numbers = {}};
  // The lowest number that the client may still repeat is kept.
  while (removal.in_write < kMaxRemoved && !client.numbers.empty() &&
         *client.numbers.begin() < call.acknowledged_below) {
    removal.numbers.insert(*client.numbers.begin());
    client.numbers.erase(client.numbers.begin());
    ++removal.in_write;
    --names_;
  }
  return removal;
}

void DedupeRecords::DropIdlest() {
  const auto idlest = clients_.find(by_age_.front());
  names_ -= idlest->second.numbers.size();
  if (!idlest->second.numbers.empty()) {
    leftovers_.push_back({.client = idlest->first, .numbers = std::move(idlest->second.numbers)});
  }
  dropped_last_ = idlest->second.last;
  clients_.erase(idlest);
  by_age_.pop_front();
  dropped_ = true;
}

bool DedupeRecords::IsProven(const RequestId& name) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto client = clients_.find(name.client);
  if (client == clients_.end()) return !dropped_;
  const Client& known = client->second;
  return !known.is_anew && name.number >= std::max(known.unproven_below, known.entered_below);
}

}  // namespace kv

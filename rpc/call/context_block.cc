#include "verbena/rpc/call/context_block.h"

#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/call/metadata.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/status.h"

namespace verbena::internal {
namespace {

// As they lie in a block, in this order; the metadata follows.
struct WireHeader {
  uint32_t block_bytes = 0;
  uint8_t flags = 0;  // kHas…
  uint8_t priority = 0;
  uint16_t reserved = 0;
};
static_assert(sizeof(WireHeader) == kContextHeaderBytes);

constexpr uint8_t kHasTrace = 1;      // a WireTrace and the tracestate
constexpr uint8_t kHasRequestId = 2;  // a WireRequestId
constexpr uint8_t kTravels = 4;       // alone
constexpr uint8_t kHasDedupe = 8;     // a WireDedupe
constexpr uint8_t kHasEarlier = 16;   // a WireEarlierHeader, and as many WireEarlier as it says
constexpr uint8_t kHasHighest = 32;   // with kHasDedupe: a WireHighest behind that

struct WireTrace {
  std::array<uint8_t, 16> trace_id{};
  std::array<uint8_t, 8> span_id{};
  uint8_t flags = 0;
  uint8_t reserved = 0;
  uint16_t state_bytes = 0;
};
static_assert(sizeof(WireTrace) == 28);

struct WireRequestId {
  std::array<uint8_t, 16> client{};
  uint64_t number = 0;
};
static_assert(sizeof(WireRequestId) == 24);

struct WireDedupe {
  WireRequestId id;
  uint64_t acknowledged_below = 0;
  uint64_t earlier = 0;
};
static_assert(sizeof(WireDedupe) == 40);

struct WireHighest {
  uint64_t number = 0;
};
static_assert(sizeof(WireHighest) == 8);

struct WireEarlierHeader {
  uint8_t count = 0;
  std::array<uint8_t, 7> reserved{};
};
static_assert(sizeof(WireEarlierHeader) == 8);

struct WireEarlier {
  uint64_t link = 0;
  uint32_t generation = 0;
  uint16_t slot = 0;
  uint16_t executor = 0;
};
static_assert(sizeof(WireEarlier) == 16);
static_assert(sizeof(WireHeader) + sizeof(WireTrace) + TraceContext::kMaxStateBytes +
                  sizeof(WireRequestId) + sizeof(WireDedupe) + sizeof(WireHighest) +
                  sizeof(WireEarlierHeader) + EarlierAttempt::kMost * sizeof(WireEarlier) ==
              kMaxContextFixedBytes);

template <typename T>
char* Put(char* to, const T& value) {
  std::memcpy(to, &value, sizeof(value));
  return to + sizeof(value);
}

char* Put(char* to, std::string_view bytes) { return to + bytes.copy(to, bytes.size()); }

absl::Status CutShort() { return absl::InvalidArgumentError("a context block that is cut short"); }

// Takes a T off the beginning of `left`.
template <typename T>
absl::Status Take(std::string_view& left, T& value) {
  if (left.size() < sizeof(value)) return CutShort();
  left.copy(reinterpret_cast<char*>(&value), sizeof(value));
  left.remove_prefix(sizeof(value));
  return absl::OkStatus();
}

absl::Status TakeTrace(std::string_view& left, std::optional<TraceContext>& trace) {
  WireTrace wire;
  VERBENA_RETURN_IF_ERROR(Take(left, wire));
  if (wire.reserved != 0) return absl::InvalidArgumentError("a reserved byte of a trace is not 0");
  if (left.size() < wire.state_bytes) return CutShort();
  trace.emplace(TraceContext{.trace_id = wire.trace_id,
                             .span_id = wire.span_id,
                             .flags = wire.flags,
                             .state = std::string(left.substr(0, wire.state_bytes))});
  left.remove_prefix(wire.state_bytes);
  return trace->Check();
}

absl::Status TakeDedupe(std::string_view& left, std::optional<DedupeName>& dedupe) {
  WireDedupe wire;
  VERBENA_RETURN_IF_ERROR(Take(left, wire));
  const bool named = wire.id.client != std::array<uint8_t, 16>{} && wire.id.number != 0 &&
                     wire.id.number != std::numeric_limits<uint64_t>::max();
  if (!named || wire.acknowledged_below > wire.id.number) {
    return absl::InvalidArgumentError(
        fmt::format("a deduplicated call whose name is not valid, or acknowledges its own result: "
                    "number {}, acknowledged below {}",
                    wire.id.number, wire.acknowledged_below));
  }
  dedupe = DedupeName{.id = {.client = wire.id.client, .number = wire.id.number},
                      .acknowledged_below = wire.acknowledged_below,
                      .earlier = wire.earlier};
  return absl::OkStatus();
}

absl::Status TakeHighest(std::string_view& left, DedupeName& dedupe) {
  WireHighest wire;
  VERBENA_RETURN_IF_ERROR(Take(left, wire));
  const bool is_known = wire.number != 0;
  if (is_known &&
      (wire.number < dedupe.id.number || wire.number == std::numeric_limits<uint64_t>::max())) {
    return absl::InvalidArgumentError(
        fmt::format("a client that says that the highest number it has given is {}, and calls {}",
                    wire.number, dedupe.id.number));
  }
  dedupe.highest = wire.number;
  return absl::OkStatus();
}

// The bytes of the parts that no stream has. Out of line, since most blocks have none of them.
[[gnu::noinline]] size_t BytesOfUnaryCall(const CallContext& context) {
  const std::vector<EarlierAttempt>& earlier = context.earlier;
  return (context.dedupe ? sizeof(WireDedupe) : 0) +
         (context.tells_highest ? sizeof(WireHighest) : 0) +
         (earlier.empty() ? 0 : sizeof(WireEarlierHeader) + earlier.size() * sizeof(WireEarlier));
}

uint8_t FlagsOfUnaryCall(const CallContext& context) {
  return (context.dedupe ? kHasDedupe : 0) | (context.tells_highest ? kHasHighest : 0) |
         (context.earlier.empty() ? 0 : kHasEarlier);
}

char* Put(char* to, const std::vector<EarlierAttempt>& earlier) {
  if (earlier.empty()) return to;
  VERBENA_CHECK(earlier.size() <= EarlierAttempt::kMost) << earlier.size();
  to = Put(to, WireEarlierHeader{.count = static_cast<uint8_t>(earlier.size())});
  for (const EarlierAttempt& each : earlier) {
    to = Put(to, WireEarlier{.link = each.link,
                             .generation = each.generation,
                             .slot = each.slot,
                             .executor = each.executor});
  }
  return to;
}

[[gnu::noinline]] char* PutOfUnaryCall(char* to, const CallContext& context) {
  VERBENA_DCHECK(!context.tells_highest || context.dedupe) << "the highest number of no client";
  if (const auto& name = context.dedupe) {
    to = Put(to, WireDedupe{.id = {.client = name->id.client, .number = name->id.number},
                            .acknowledged_below = name->acknowledged_below,
                            .earlier = name->earlier});
  }
  if (context.tells_highest) to = Put(to, WireHighest{.number = context.dedupe->highest});
  return Put(to, context.earlier);
}

[[gnu::noinline]] absl::Status TakeEarlier(std::string_view& left,
                                           std::vector<EarlierAttempt>& earlier) {
  WireEarlierHeader header;
  VERBENA_RETURN_IF_ERROR(Take(left, header));
  if (header.count == 0 || header.count > EarlierAttempt::kMost ||
      header.reserved != WireEarlierHeader().reserved) {
    return absl::InvalidArgumentError(fmt::format(
        "a request that names {} earlier attempts, or has a reserved byte there that is "
        "not 0: it may name 1 to {}",
        header.count, EarlierAttempt::kMost));
  }
  for (int i = 0; i < header.count; ++i) {
    WireEarlier wire;
    VERBENA_RETURN_IF_ERROR(Take(left, wire));
    earlier.push_back({.link = wire.link,
                       .executor = wire.executor,
                       .slot = wire.slot,
                       .generation = wire.generation});
  }
  return absl::OkStatus();
}

}  // namespace

size_t CallContext::encoded_bytes() const {
  return sizeof(WireHeader) + (trace ? sizeof(WireTrace) + trace->state.size() : 0) +
         (request_id ? sizeof(WireRequestId) : 0) +
         (is_of_unary_call() ? BytesOfUnaryCall(*this) : 0) + metadata.bytes();
}

void CallContext::Encode(char* to) const {
  const bool is_unary = is_of_unary_call();
  const auto flags =
      static_cast<uint8_t>((trace ? kHasTrace : 0) | (request_id ? kHasRequestId : 0) |
                           (is_unary ? FlagsOfUnaryCall(*this) : 0));
  const char* const begin = to;
  to = Put(to, WireHeader{.block_bytes = static_cast<uint32_t>(encoded_bytes()),
                          .flags = flags,
                          .priority = static_cast<uint8_t>(priority)});
  if (trace) {
    to = Put(to, WireTrace{.trace_id = trace->trace_id,
                           .span_id = trace->span_id,
                           .flags = trace->flags,
                           .state_bytes = static_cast<uint16_t>(trace->state.size())});
    to = Put(to, std::string_view(trace->state));
  }
  if (request_id) {
    to = Put(to, WireRequestId{.client = request_id->client, .number = request_id->number});
  }
  if (is_unary) to = PutOfUnaryCall(to, *this);
  const char* const end = Put(to, MetadataCodec::EntriesOf(metadata));
  VERBENA_DCHECK(end == begin + encoded_bytes())
      << end - begin << " bytes of a context block of " << encoded_bytes();
}

void EncodeTravellingContext(size_t block_bytes, char* to) {
  Put(to, WireHeader{.block_bytes = static_cast<uint32_t>(block_bytes), .flags = kTravels});
}

absl::StatusOr<ContextHeader> ParseContextHeader(const char* body, size_t bytes) {
  std::string_view left(body, bytes);
  WireHeader wire;
  VERBENA_RETURN_IF_ERROR(Take(left, wire));
  const bool travels = wire.flags == kTravels;
  constexpr uint8_t kKnown = kHasTrace | kHasRequestId | kHasDedupe | kHasEarlier | kHasHighest;
  const bool is_of_no_name = (wire.flags & (kHasDedupe | kHasHighest)) == kHasHighest;
  const bool unknown = ((wire.flags & ~kKnown) != 0 && !travels) || is_of_no_name;
  if (unknown || wire.reserved != 0 ||
      wire.priority > static_cast<uint8_t>(travels ? Priority::kNormal : Priority::kBackground)) {
    return absl::InvalidArgumentError(
        fmt::format("a context block with the flags {:#x}, the priority {} and {:#x} reserved",
                    wire.flags, wire.priority, wire.reserved));
  }
  const ContextHeader header{.block_bytes = wire.block_bytes, .travels = travels};
  if (header.block_bytes < sizeof(wire) || header.block_bytes > kMaxContextBytes ||
      header.in_frame() > bytes) {
    return absl::InvalidArgumentError(
        fmt::format("a context block of {} bytes in a body of {}", header.block_bytes, bytes));
  }
  return header;
}

absl::Status ParseContext(const char* block, size_t bytes, CallContext& context) {
  VERBENA_ASSIGN_OR_RETURN(ContextHeader header, ParseContextHeader(block, bytes));
  if (header.travels || header.block_bytes != bytes) {
    return absl::InvalidArgumentError(
        fmt::format("a context block of {} bytes that says {}", bytes, header.block_bytes));
  }
  std::string_view left(block, bytes);
  WireHeader wire;
  VERBENA_RETURN_IF_ERROR(Take(left, wire));
  context.priority = static_cast<Priority>(wire.priority);
  if ((wire.flags & kHasTrace) != 0) VERBENA_RETURN_IF_ERROR(TakeTrace(left, context.trace));
  if ((wire.flags & kHasRequestId) != 0) {
    WireRequestId id;
    VERBENA_RETURN_IF_ERROR(Take(left, id));
    context.request_id = RequestId{.client = id.client, .number = id.number};
  }
  if ((wire.flags & kHasDedupe) != 0) {
    VERBENA_RETURN_IF_ERROR(TakeDedupe(left, context.dedupe));
  }
  if ((wire.flags & kHasHighest) != 0) {
    context.tells_highest = true;
    VERBENA_RETURN_IF_ERROR(TakeHighest(left, *context.dedupe));
  }
  if ((wire.flags & kHasEarlier) != 0) {
    VERBENA_RETURN_IF_ERROR(TakeEarlier(left, context.earlier));
  }
  return MetadataCodec::Read(left, context.metadata);
}

absl::StatusOr<Metadata> ParseTrailingMetadata(const char* block, size_t bytes) {
  CallContext context;
  VERBENA_RETURN_IF_ERROR(ParseContext(block, bytes, context));
  if (context.priority != Priority::kNormal || context.trace || context.request_id ||
      context.is_of_unary_call()) {
    return absl::InvalidArgumentError("a response's context block with more than metadata");
  }
  return std::move(context.metadata);
}

absl::Status NameOfStream() {
  return absl::InvalidArgumentError(
      "a stream with the name of a deduplicated call, or with earlier attempts");
}

absl::Status NotAnnounced(const CallContext& context, const ContextFeatures& agreed) {
  const bool names = !context.earlier.empty() && !agreed.names_attempts;
  return absl::InvalidArgumentError(
      fmt::format("a request that {}, on a link whose sides have not both said that they know that",
                  names ? "names earlier attempts" : "tells the highest number of its client"));
}

}  // namespace verbena::internal

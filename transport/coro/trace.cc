#include "verbena/transport/coro/trace.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "absl/strings/str_cat.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/random.h"
#include "verbena/transport/coro/frame_pool.h"

namespace verbena {
namespace {

// The offsets of a traceparent's parts: version-trace_id-span_id-flags.
constexpr size_t kTraceIdAt = 3;
constexpr size_t kSpanIdAt = 36;
constexpr size_t kFlagsAt = 53;

template <size_t kBytes>
bool AllZero(const std::array<uint8_t, kBytes>& id) {
  return std::all_of(id.begin(), id.end(), [](uint8_t byte) { return byte == 0; });
}

template <size_t kBytes>
void FillRandom(std::array<uint8_t, kBytes>& id) {
  static_assert(kBytes % sizeof(uint64_t) == 0);
  do {
    for (size_t at = 0; at < kBytes; at += sizeof(uint64_t)) {
      const uint64_t number = internal::Random::Real().Next();
      std::memcpy(id.data() + at, &number, sizeof(number));
    }
  } while (AllZero(id));
}

// -1: no lower-case hexadecimal digit.
int DigitOf(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool ReadHex(std::string_view text, uint8_t* bytes) {
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    const int high = DigitOf(text[i]);
    const int low = DigitOf(text[i + 1]);
    if (high < 0 || low < 0) return false;
    bytes[i / 2] = static_cast<uint8_t>(high << 4 | low);
  }
  return true;
}

void AppendHex(const uint8_t* bytes, size_t count, std::string& text) {
  constexpr char kDigits[] = "0123456789abcdef";
  for (size_t i = 0; i < count; ++i) {
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
  }
}

bool IsKeyCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '*' ||
         c == '/';
}

// A key of a tracestate member: simple, or tenant@system.
bool IsStateKey(std::string_view key) {
  const size_t at = key.find('@');
  const std::string_view system = at == std::string_view::npos ? key : key.substr(at + 1);
  const std::string_view tenant = at == std::string_view::npos ? "" : key.substr(0, at);
  const auto valid = [](std::string_view part) {
    return std::all_of(part.begin(), part.end(), IsKeyCharacter);
  };
  if (system.empty() || system.front() < 'a' || system.front() > 'z' || !valid(system)) {
    return false;
  }
  if (at == std::string_view::npos) return system.size() <= 256;
  const auto begins_well = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  return system.size() <= 14 && !tenant.empty() && tenant.size() <= 241 && valid(tenant) &&
         begins_well(tenant.front());
}

bool IsStateValue(std::string_view value) {
  return !value.empty() && value.size() <= 256 && value.back() != ' ' &&
         std::all_of(value.begin(), value.end(),
                     [](char c) { return c >= ' ' && c <= '~' && c != ',' && c != '='; });
}

std::string_view Stripped(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

absl::Status CheckState(std::string_view state) {
  if (state.empty()) return absl::OkStatus();
  if (state.size() > TraceContext::kMaxStateBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a tracestate of ", state.size(), " bytes; it has at most ", TraceContext::kMaxStateBytes));
  }
  size_t members = 0;
  for (size_t begin = 0; begin <= state.size();) {
    const size_t end = std::min(state.find(',', begin), state.size());
    const std::string_view member = Stripped(state.substr(begin, end - begin));
    begin = end + 1;
    if (member.empty()) continue;
    const size_t equals = member.find('=');
    if (equals == std::string_view::npos || !IsStateKey(member.substr(0, equals)) ||
        !IsStateValue(member.substr(equals + 1))) {
      return absl::InvalidArgumentError("a tracestate with a member that is no key=value");
    }
    if (++members > TraceContext::kMaxStateMembers) {
      return absl::InvalidArgumentError(
          absl::StrCat("a tracestate of more than ", TraceContext::kMaxStateMembers, " members"));
    }
  }
  return absl::OkStatus();
}

absl::Status NoTraceparent() {
  return absl::InvalidArgumentError(
      "no traceparent: it is two digits of version, 32 of trace id, 16 of span id and two of "
      "flags, in lower-case hexadecimal with '-' between them, and no id is 0");
}

}  // namespace

TraceContext TraceContext::Root(bool sampled) {
  TraceContext root;
  FillRandom(root.trace_id);
  FillRandom(root.span_id);
  root.flags = sampled ? kSampled : 0;
  return root;
}

TraceContext TraceContext::Child() const {
  TraceContext child = *this;
  FillRandom(child.span_id);
  return child;
}

absl::StatusOr<TraceContext> TraceContext::Parse(std::string_view traceparent,
                                                 std::string_view tracestate) {
  if (traceparent.size() < kTraceparentBytes || traceparent[kTraceIdAt - 1] != '-' ||
      traceparent[kSpanIdAt - 1] != '-' || traceparent[kFlagsAt - 1] != '-') {
    return NoTraceparent();
  }
  TraceContext trace;
  uint8_t version = 0;
  if (!ReadHex(traceparent.substr(0, 2), &version) || version == 0xff ||
      !ReadHex(traceparent.substr(kTraceIdAt, 32), trace.trace_id.data()) ||
      !ReadHex(traceparent.substr(kSpanIdAt, 16), trace.span_id.data()) ||
      !ReadHex(traceparent.substr(kFlagsAt, 2), &trace.flags)) {
    return NoTraceparent();
  }
  // A later version may have more behind another '-'.
  const bool longer = traceparent.size() > kTraceparentBytes;
  if (longer && (version == 0 || traceparent[kTraceparentBytes] != '-')) return NoTraceparent();
  if (AllZero(trace.trace_id) || AllZero(trace.span_id)) return NoTraceparent();
  if (CheckState(tracestate).ok()) trace.state = std::string(tracestate);
  return trace;
}

std::string TraceContext::Traceparent() const {
  std::string text = "00-";
  text.reserve(kTraceparentBytes);
  AppendHex(trace_id.data(), trace_id.size(), text);
  text += '-';
  AppendHex(span_id.data(), span_id.size(), text);
  text += '-';
  AppendHex(&flags, 1, text);
  return text;
}

absl::Status TraceContext::Check() const {
  if (AllZero(trace_id) || AllZero(span_id)) {
    return absl::InvalidArgumentError("a trace context whose trace id or span id is 0");
  }
  return CheckState(state);
}

}  // namespace verbena

namespace verbena::internal {

// In memory of the frames' pool: a call in steady state allocates nothing.
struct TraceRef::Shared {
  TraceContext context;
  uint32_t references = 1;
};

TraceRef::TraceRef(const TraceContext& trace)
    : shared_(new(AllocateFrame(sizeof(Shared))) Shared{trace}) {}

void TraceRef::AddReference() { ++shared_->references; }

void TraceRef::RemoveReference() {
  VERBENA_DCHECK(shared_->references > 0);
  if (--shared_->references > 0) return;
  shared_->~Shared();
  FreeFrame(shared_, sizeof(Shared));
}

const TraceContext* TraceRef::Context() const { return &shared_->context; }

}  // namespace verbena::internal

// TraceContext: the place of some work in a distributed trace, as W3C Trace Context defines it.
//
// A Task carries one from the call that it serves to the calls that it makes (cancel.h). A call
// names the same trace, and a span id of its own. Parse() and the two headers' texts are pure
// functions. A value; any thread.
//
//   VERBENA_CO_ASSIGN_OR_RETURN(TraceContext trace, TraceContext::Parse(header));
//   co_await WithTrace(stub.Get(request), trace);   // context.h

#ifndef VERBENA_TRANSPORT_CORO_TRACE_H_
#define VERBENA_TRANSPORT_CORO_TRACE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "verbena/transport/base/export.h"

namespace verbena {

struct VERBENA_EXPORT TraceContext {
  static constexpr uint8_t kSampled = 1;
  static constexpr size_t kTraceparentBytes = 55;
  static constexpr size_t kMaxStateBytes = 512;
  static constexpr size_t kMaxStateMembers = 32;

  std::array<uint8_t, 16> trace_id{};
  // The span that the work belongs to: the parent of the spans that are made in it.
  std::array<uint8_t, 8> span_id{};
  uint8_t flags = 0;
  std::string state = {};  // the tracestate header; empty if there is none

  // A new trace, with random ids.
  static TraceContext Root(bool sampled);
  // The same trace, with a random span id.
  TraceContext Child() const;
  bool sampled() const { return (flags & kSampled) != 0; }

  // Reads a traceparent header of version 00, or the part that a later version has in common with
  // it. INVALID_ARGUMENT if the text is no such header. A tracestate that is not valid is left out,
  // as W3C wants it.
  static absl::StatusOr<TraceContext> Parse(std::string_view traceparent,
                                            std::string_view tracestate = {});
  // The traceparent header, version 00.
  std::string Traceparent() const;
  // INVALID_ARGUMENT, which says why, if an id is 0 or `state` is no tracestate header.
  absl::Status Check() const;

  bool operator==(const TraceContext&) const = default;
};

}  // namespace verbena

namespace verbena::internal {

// A counted reference to a TraceContext, or none. The references to one TraceContext belong to one
// thread.
class VERBENA_EXPORT TraceRef {
 public:
  TraceRef() = default;
  explicit TraceRef(const TraceContext& trace);
  TraceRef(const TraceRef& other) : shared_(other.shared_) {
    if (shared_ != nullptr) AddReference();
  }
  TraceRef& operator=(TraceRef other) noexcept {
    std::swap(shared_, other.shared_);
    return *this;
  }
  ~TraceRef() {
    if (shared_ != nullptr) RemoveReference();
  }

  // nullptr if there is none. Valid as long as there is a reference.
  const TraceContext* get() const { return shared_ == nullptr ? nullptr : Context(); }

 private:
  struct Shared;

  // Out of line to keep the path of calls without a trace small.
  void AddReference();
  void RemoveReference();
  const TraceContext* Context() const;

  Shared* shared_ = nullptr;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_CORO_TRACE_H_

// Code as users write it against generated code, checked when this file is compiled. Never run.

#include <chrono>
#include <concepts>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "testdata/unary.verbena.pb.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/service.h"
#include "verbena/transport/coro/combinators.h"
#include "verbena/transport/coro/task.h"

namespace verbena::testing::unary::v1 {
namespace {

using std::chrono_literals::operator""ms;

using Stub = Echo::Stub;
using Returning = UnaryCall<const SayRequest&, SayReply>;
using Owning = UnaryCall<SayRequest, SayReply>;
using Filling = UnaryCall<const SayRequest&, SayReply&>;

template <typename... Arguments>
using Said = decltype(std::declval<const Stub&>().Say(std::declval<Arguments>()...));

template <typename... Arguments>
concept Sayable = requires { typename Said<Arguments...>; };

// Exactly three forms, each with and without options.
static_assert(static_cast<Returning (Stub::*)(const SayRequest&) const>(&Stub::Say));
static_assert(static_cast<Owning (Stub::*)(SayRequest&&) const>(&Stub::Say));
static_assert(static_cast<Filling (Stub::*)(const SayRequest&, SayReply&) const>(&Stub::Say));
static_assert(static_cast<Returning (Stub::*)(const SayRequest&, CallOptions) const>(&Stub::Say));
static_assert(static_cast<Owning (Stub::*)(SayRequest&&, CallOptions) const>(&Stub::Say));
static_assert(
    static_cast<Filling (Stub::*)(const SayRequest&, SayReply&, CallOptions) const>(&Stub::Say));
static_assert(std::same_as<Returning, Said<const SayRequest&>>);
static_assert(std::same_as<Returning, Said<SayRequest&>>);
static_assert(std::same_as<Owning, Said<SayRequest>>);
static_assert(std::same_as<Returning, Said<SayRequest&, CallOptions>>);
static_assert(std::same_as<Filling, Said<SayRequest&, SayReply&>>);
static_assert(std::same_as<Filling, Said<SayRequest, SayReply&, CallOptions>>);

// A reply that cannot be filled, or one that nobody could read, is not taken.
static_assert(!Sayable<SayRequest&, const SayReply&>);
static_assert(!Sayable<SayRequest&, SayReply>);
static_assert(!Sayable<SayReply&>);
static_assert(!Sayable<>);

// A stub is a light value; the class around it is a name only.
static_assert(std::copyable<Stub> && std::is_final_v<Stub> && !std::is_polymorphic_v<Stub> &&
              sizeof(Stub) == sizeof(void*));
static_assert(std::constructible_from<Stub, Channel&> && !std::convertible_to<Channel&, Stub>);
static_assert(!std::default_initializable<Echo> && std::is_final_v<Echo>);
static_assert(std::string_view(Echo::kFullName) == "verbena.testing.unary.v1.Echo");

// A service may leave methods out, and is destroyed through its base.
static_assert(std::derived_from<Echo::Service, verbena::Service>);
static_assert(!std::is_abstract_v<Echo::Service> && std::has_virtual_destructor_v<Echo::Service>);

// An interface has virtual functions alone, and the adapter is one.
static_assert(std::is_abstract_v<Echo::StubInterface> &&
              std::has_virtual_destructor_v<Echo::StubInterface>);
static_assert(std::derived_from<Echo::StubAdapter, Echo::StubInterface> &&
              std::is_final_v<Echo::StubAdapter> &&
              std::constructible_from<Echo::StubAdapter, const Stub&>);

// A fake is a coroutine for each method.
class FakeEcho final : public Echo::StubInterface {
 public:
  Task<absl::StatusOr<SayReply>> Say(SayRequest request, CallOptions /*options*/) const override {
    SayReply reply;
    reply.set_text(request.text());
    co_return reply;
  }
  Task<absl::StatusOr<SayReply>> Shout(SayRequest /*request*/,
                                       CallOptions /*options*/) const override {
    co_return absl::UnavailableError("fake");
  }
};

// As a `const Stub&` does, a `const StubInterface&` makes calls.
[[maybe_unused]] Task<absl::Status> CallsOfAnInterface(const Echo::StubInterface& echo,
                                                       CallInfo& info) {
  SayRequest request;
  absl::StatusOr<SayReply> reply = co_await echo.Say(request);
  reply = co_await echo.Say(request, {.deadline = 5ms, .info = &info});
  reply = co_await echo.Say({}, {});
  reply = co_await echo.Shout(std::move(request));
  co_return reply.status();
}

[[maybe_unused]] Task<absl::Status> CallsOfAFake(CallInfo& info) {
  FakeEcho fake;
  co_return co_await CallsOfAnInterface(fake, info);
}

// How options and requests are written in place: each call must mean one form only.
[[maybe_unused]] Task<absl::Status> Calls(Channel& channel, CallInfo& info) {
  Stub stub(channel);
  SayRequest request, moved;
  SayReply reply;
  absl::StatusOr<SayReply> returned = co_await stub.Say(request);
  returned = co_await stub.Say(request, {});
  returned = co_await stub.Say(request, {.deadline = 5ms});
  returned = co_await stub.Say(request, {.deadline = 5ms, .info = &info});
  returned = co_await stub.Say({});
  returned = co_await stub.Say({}, {.deadline = 5ms});
  returned = co_await stub.Say(std::move(moved), {.info = &info});
  absl::Status status = co_await stub.Say(request, reply);
  status = co_await stub.Say(request, reply, {});
  status = co_await stub.Say(request, reply, {.deadline = 5ms});
  status = co_await stub.Say({}, reply);
  co_return status;
}

// A call moves until it begins, and has one owner.
static_assert(std::move_constructible<Owning> && !std::copy_constructible<Owning>);
static_assert(std::same_as<Owning::value_type, absl::StatusOr<SayReply>>);
static_assert(std::same_as<Filling::value_type, absl::Status>);

// Calls go wherever Tasks go.
[[maybe_unused]] Task<absl::Status> CallsAmongTasks(Stub& stub, SayRequest& request,
                                                    SayReply& reply) {
  auto [a, b] = co_await WhenAll(stub.Say(request), stub.Say(request, reply));
  auto first = co_await WhenAny(stub.Say(request), Task<absl::Status>(stub.Say(request, reply)));
  if (first.index() == 0) co_return a.status();
  std::vector<Owning> calls;
  calls.push_back(stub.Say(SayRequest()));
  auto won = co_await WhenAny(std::move(calls));
  if (!won.result.ok()) co_return b;
  std::vector<SayRequest> requests(3);
  SayReply shared;
  co_return co_await ForEach(requests, 2,
                             [&](const SayRequest& each) { return stub.Say(each, shared); });
}

// The owning form may be kept; clang's lifetime analysis must not object.
[[maybe_unused]] VERBENA_CORO_WRAPPER Task<absl::StatusOr<SayReply>> Kept(const Stub& stub) {
  SayRequest request;
  return stub.Say(std::move(request), {.deadline = 5ms});
}

[[maybe_unused]] Task<absl::Status> KeptForLater(const Stub& stub) {
  Owning later = stub.Say(SayRequest());
  co_return (co_await std::move(later)).status();
}

}  // namespace
}  // namespace verbena::testing::unary::v1

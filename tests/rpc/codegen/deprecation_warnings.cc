// Compiled with -Xclang -verify: the build fails unless clang warns at each line marked below, and
// nowhere else. Never run.

#include "absl/status/statusor.h"
#include "testdata/deprecated.pb.h"
#include "testdata/deprecated.verbena.pb.h"
#include "verbena/rpc/call.h"
#include "verbena/transport/coro/task.h"

namespace verbena::testing::deprecated::v1 {
namespace {

[[maybe_unused]] Task<void> Calls(Channel& channel) {
  Current::Stub current(channel);
  Message request;
  Message reply;
  (void)co_await current.Kept(request);
  (void)co_await current.Old(request);         // expected-warning {{'Old' is deprecated}}
  (void)co_await current.Old(Message());       // expected-warning {{'Old' is deprecated}}
  (void)co_await current.Old(request, reply);  // expected-warning {{'Old' is deprecated}}
  // expected-note@*:* 3 {{explicitly marked deprecated here}}

  Current::StubAdapter adapter(current);
  Current::StubInterface& interface = adapter;
  (void)co_await interface.Kept(request);
  (void)co_await interface.Old(request);  // expected-warning {{'Old' is deprecated}}
  (void)co_await adapter.Old(request);    // expected-warning {{'Old' is deprecated}}
  // expected-note@*:* 2 {{explicitly marked deprecated here}}

  Former::Stub former(channel);  // expected-warning {{'Stub' is deprecated}}
  // expected-note@*:* {{explicitly marked deprecated here}}
}

}  // namespace
}  // namespace verbena::testing::deprecated::v1

#include "tools/verbena/remote.h"

#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "fmt/format.h"
#include "tools/verbena/message_json.h"
#include "verbena/health.pb.h"
#include "verbena/rpc/reflection/methods.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/base/status.h"

namespace verbena::command {
namespace {

constexpr char kMistakeUrl[] = "verbena.command/mistake";

// One call by a method of ours. `Reply` is empty at first.
template <typename Request, typename Reply>
Task<absl::Status> Ask(Channel& channel, const MethodDescriptor& method, const Request& request,
                       Reply& reply, Deadline deadline) {
  CallOptions options;
  options.deadline = deadline;
  co_return FromServer(co_await UnaryCall<const Request&, Reply&>(
      internal::CoreOf(channel), method, request, reply, std::move(options)));
}

// `status` of a call of `service`, one of ours, with the remedy if the server lacks that.
absl::Status OrHowToServe(const Channel& channel, const absl::Status& status, const char* service,
                          const char* type) {
  if (!absl::IsUnimplemented(status)) return status;
  return absl::UnimplementedError(fmt::format(
      "{} does not serve {}: in the server, link Verbena::reflection (CMake), verbena-reflection "
      "(pkg-config) or @verbena//rpc:reflection (Bazel), and give a verbena::{} to Server::Start()",
      channel.target(), service, type));
}

absl::Status WithoutReflection(const Channel& channel, const absl::Status& status) {
  return OrHowToServe(channel, status, internal::kReflectionService, "ReflectionService");
}

// The failure of a name that the server does not know.
Task<absl::Status> NoSuchName(Channel& channel, const std::string& name, Deadline deadline) {
  const absl::StatusOr<reflection::v1::ListReply> list = co_await ListServices(channel, deadline);
  std::vector<std::string> names;
  if (list.ok()) {
    for (const auto& service : list->services()) names.push_back(service.name());
  }
  co_return Mistake(absl::NotFoundError(
      fmt::format("{} serves no '{}'{}{}", channel.target(), name, DidYouMean(name, names),
                  fmt::format(" (verbena list {} shows what it serves)", channel.target()))));
}

}  // namespace

absl::Status Mistake(absl::Status status) {
  if (!status.ok()) status.SetPayload(kMistakeUrl, absl::Cord());
  return status;
}

bool IsMistake(const absl::Status& status) { return status.GetPayload(kMistakeUrl).has_value(); }

absl::Status FromServer(absl::Status status) {
  status.ErasePayload(kMistakeUrl);
  return status;
}

Task<absl::StatusOr<reflection::v1::ListReply>> ListServices(Channel& channel, Deadline deadline) {
  const reflection::v1::ListRequest request;
  reflection::v1::ListReply reply;
  const absl::Status status =
      co_await Ask(channel, internal::kListServices, request, reply, deadline);
  if (!status.ok()) co_return WithoutReflection(channel, status);
  co_return reply;
}

Task<absl::StatusOr<std::unique_ptr<Schema>>> FetchSchema(Channel& channel, const std::string& name,
                                                          Deadline deadline) {
  reflection::v1::DescribeRequest request;
  request.set_name(name);
  reflection::v1::DescribeReply reply;
  const absl::Status status = co_await Ask(channel, internal::kDescribe, request, reply, deadline);
  // What the server says, and not a failure on the way to it.
  if (!status.ok() && OutcomeOf(status) == Outcome::kExecuted) {
    if (absl::IsNotFound(status)) co_return co_await NoSuchName(channel, name, deadline);
    if (absl::IsInvalidArgument(status)) co_return Mistake(status);
  }
  if (!status.ok()) co_return WithoutReflection(channel, status);
  co_return Schema::Build({reply.files().begin(), reply.files().end()});
}

Task<absl::StatusOr<bool>> CheckHealth(Channel& channel, const std::string& service,
                                       Deadline deadline) {
  health::v1::CheckRequest request;
  request.set_service(service);
  health::v1::CheckReply reply;
  const absl::Status status =
      co_await Ask(channel, internal::kCheckHealth, request, reply, deadline);
  if (!status.ok()) {
    co_return OrHowToServe(channel, status, internal::kHealthService, "HealthService");
  }
  co_return reply.status() == health::v1::CheckReply::SERVING;
}

}  // namespace verbena::command

#include "verbena/rpc/reflection.h"

#include <array>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "verbena/health.pb.h"
#include "verbena/reflection.pb.h"
#include "verbena/rpc/reflection/files.h"
#include "verbena/rpc/reflection/methods.h"
#include "verbena/rpc/server/server_of.h"
#include "verbena/transport/base/status.h"

namespace verbena {
namespace {

using internal::MessageLite;
using internal::ServerOf;
using internal::ServiceOf;

absl::Status CheckName(std::string_view name) {
  if (name.size() <= ReflectionService::kMaxNameBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format("a name of {} bytes: a name has {} at most",
                                                name.size(), ReflectionService::kMaxNameBytes));
}

Task<absl::Status> List(Service& /*service*/, ServerContext& context,
                        const MessageLite& /*request*/, MessageLite& answer) {
  auto& reply = static_cast<reflection::v1::ListReply&>(answer);
  constexpr size_t kFieldBytes = 16;  // more than the tags and lengths of a name
  reflection::v1::ListReply::Service* service = nullptr;
  size_t bytes = 0;
  for (const ServerMethod* method : ServerOf::Methods(context)) {
    const std::string_view name = method->descriptor->full_name;
    const std::string_view its_service = ServiceOf(*method->descriptor);
    bytes += name.size() + kFieldBytes;
    if (bytes > ReflectionService::kMaxAnswerBytes) {
      reply.set_methods_left_out(reply.methods_left_out() + 1);
      continue;
    }
    if (service == nullptr || service->name() != its_service) {
      service = reply.add_services();
      service->set_name(std::string(its_service));
    }
    service->add_methods(std::string(name.substr(its_service.size() + 1)));
  }
  co_return absl::OkStatus();
}

Task<absl::Status> Describe(Service& /*service*/, ServerContext& context, const MessageLite& asked,
                            MessageLite& answer) {
  const std::string& name = static_cast<const reflection::v1::DescribeRequest&>(asked).name();
  VERBENA_CO_RETURN_IF_ERROR(CheckName(name));
  VERBENA_CO_ASSIGN_OR_RETURN(std::vector<std::string> files,
                              internal::FilesThatDeclare(name, ServerOf::Methods(context),
                                                         ReflectionService::kMaxAnswerBytes));
  auto& reply = static_cast<reflection::v1::DescribeReply&>(answer);
  for (std::string& file : files) reply.add_files(std::move(file));
  co_return absl::OkStatus();
}

}  // namespace

const char* ReflectionService::full_name() const { return internal::kReflectionService; }

absl::Span<const ServerMethod> ReflectionService::methods() const {
  static const std::array<ServerMethod, 2> methods = {
      {{&internal::kListServices, &reflection::v1::ListRequest::default_instance(),
        &reflection::v1::ListReply::default_instance(), &List},
       {&internal::kDescribe, &reflection::v1::DescribeRequest::default_instance(),
        &reflection::v1::DescribeReply::default_instance(), &Describe}}};
  return methods;
}

// The services that do not serve, "" for the whole server.
class HealthService::State {
 public:
  void Set(std::string_view service, bool serving) {
    const std::lock_guard lock(mutex_);
    if (!serving) {
      down_.emplace(service);
    } else if (const auto found = down_.find(service); found != down_.end()) {
      down_.erase(found);
    }
  }

  bool serving(std::string_view service) const {
    const std::lock_guard lock(mutex_);
    return !down_.contains("") && !down_.contains(service);
  }

 private:
  mutable std::mutex mutex_;
  std::set<std::string, std::less<>> down_;  // under mutex_
};

HealthService::HealthService() : state_(std::make_unique<State>()) {}
HealthService::~HealthService() = default;

void HealthService::SetServing(std::string_view service, bool serving) {
  state_->Set(service, serving);
}

bool HealthService::serving(std::string_view service) const { return state_->serving(service); }

const char* HealthService::full_name() const { return internal::kHealthService; }

namespace {

bool Serves(const ServerContext& context, std::string_view service) {
  for (const ServerMethod* method : ServerOf::Methods(context)) {
    if (ServiceOf(*method->descriptor) == service) return true;
  }
  return false;
}

Task<absl::Status> Check(Service& service, ServerContext& context, const MessageLite& asked,
                         MessageLite& answer) {
  const std::string& name = static_cast<const health::v1::CheckRequest&>(asked).service();
  VERBENA_CO_RETURN_IF_ERROR(CheckName(name));
  if (!name.empty() && !Serves(context, name)) {
    co_return absl::NotFoundError(fmt::format("this server serves no {}", name));
  }
  const bool serving =
      !ServerOf::Leaves(context) && static_cast<HealthService&>(service).serving(name);
  static_cast<health::v1::CheckReply&>(answer).set_status(
      serving ? health::v1::CheckReply::SERVING : health::v1::CheckReply::NOT_SERVING);
  co_return absl::OkStatus();
}

}  // namespace

absl::Span<const ServerMethod> HealthService::methods() const {
  static const std::array<ServerMethod, 1> methods = {
      {{&internal::kCheckHealth, &health::v1::CheckRequest::default_instance(),
        &health::v1::CheckReply::default_instance(), &Check}}};
  return methods;
}

}  // namespace verbena

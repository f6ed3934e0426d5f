// Reflection and health: two services by which programs without a server's stubs, such as the
// command verbena, learn what it serves and whether it does.
//
//   ReflectionService   the served services, and the .proto files that they use
//   HealthService       SERVING or NOT_SERVING, by service
//
// A program that names them links Verbena::reflection (CMake), verbena-reflection (pkg-config) or
// @verbena//rpc:reflection (Bazel), and gives them to its server. libverbena itself does not
// contain them.
//
//   verbena::ReflectionService reflection;
//   verbena::HealthService health;
//   auto server = verbena::Server::Start(*runtime, {&store, &reflection, &health});
//
//   $ verbena list 127.0.0.1:4000
//   $ verbena call 127.0.0.1:4000 storage.Store/Get '{"key": "a"}'
//
// On the wire they are verbena.reflection.v1.Reflection and verbena.health.v1.Health, whose .proto
// files are in rpc/reflection/. They are services like all others: interceptors see their calls,
// and admission bounds them.

#ifndef VERBENA_RPC_REFLECTION_H_
#define VERBENA_RPC_REFLECTION_H_

#include <cstddef>
#include <memory>
#include <string_view>

#include "absl/types/span.h"
#include "verbena/rpc/service.h"
#include "verbena/transport/base/export.h"

namespace verbena {

// ReflectionService: tells a client which services its server serves, and gives it the .proto files
// that these use.
//
// It has no state, and one object may serve in several servers; it must outlive them. Its handlers
// run on every executor and never suspend. The first answer about a file makes protobuf build the
// file's descriptors, which takes some milliseconds if it is large.
//
// A client gets nothing else: a name that no served service uses is NOT_FOUND, and services of the
// same files that the server does not serve are left out. Comments of the files are not in the
// program. Answers are bounded by kMaxAnswerBytes, names in requests by kMaxNameBytes. A service
// whose .proto has `optimize_for = LITE_RUNTIME` is listed, but has no descriptors:
// FAILED_PRECONDITION.
//
//   precondition              how it is checked   test
//   it outlives its servers   not checked
class VERBENA_EXPORT ReflectionService final : public Service {
 public:
  // The most bytes of an answer. RESOURCE_EXHAUSTED for files that are larger; a longer list of
  // methods is cut off, and says how many are missing.
  static constexpr size_t kMaxAnswerBytes = size_t{1} << 20;
  // The longest name that is looked up; INVALID_ARGUMENT for longer ones.
  static constexpr size_t kMaxNameBytes = 1024;

  ReflectionService() = default;

  const char* full_name() const override;
  absl::Span<const ServerMethod> methods() const override;
};

// HealthService: tells clients, and whatever runs `verbena health`, whether the server serves.
//
// Each service is SERVING until the program says otherwise. From the first moment of
// Server::Shutdown() all of them are NOT_SERVING, in each server that has this object, as far as
// its links still take calls. A service that the server does not serve is NOT_FOUND.
//
// Belongs to the program, and must outlive its servers. Any thread.
//
//   health.SetServing("storage.Store", false);  // while it is rebuilt
//   health.SetServing("", false);               // the whole server
//
//   precondition              how it is checked   test
//   it outlives its servers   not checked
class VERBENA_EXPORT HealthService final : public Service {
 public:
  HealthService();
  ~HealthService() override;
  HealthService(const HealthService&) = delete;
  HealthService& operator=(const HealthService&) = delete;

  // `service` is "package.Service", or empty for the whole server: while that does not serve, no
  // service does. A name that no server serves has no effect.
  void SetServing(std::string_view service, bool serving);
  // What SetServing() said last of `service` or of the whole server; true at first. A shutdown
  // changes only what clients hear.
  bool serving(std::string_view service) const;

  const char* full_name() const override;
  absl::Span<const ServerMethod> methods() const override;

 private:
  class State;

  const std::unique_ptr<State> state_;
};

}  // namespace verbena

#endif  // VERBENA_RPC_REFLECTION_H_

// Schema: .proto files that a server has sent, and the methods and messages that they declare, for
// calls without generated stubs.
//
// The files are a peer's: what is wrong in them is an error, their size is bounded by that of the
// message that brought them, and their number and how deep their types nest by kMostFiles and
// kMostDepth, since protobuf follows both by recursion. The files of google/protobuf are this
// program's: protobuf's JSON takes them for what their names say. Owns its descriptors and
// messages' types. One thread.

#ifndef VERBENA_TOOLS_VERBENA_SCHEMA_H_
#define VERBENA_TOOLS_VERBENA_SCHEMA_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/dynamic_message.h"
#include "google/protobuf/message.h"
#include "verbena/rpc/call.h"

namespace verbena::command {

// A method that can be called. Belongs to its Schema's user, and must outlive its calls.
struct DynamicMethod {
  DynamicMethod(std::string name, Idempotency idempotency, Payloads payloads, Streams streams,
                bool dedupe)
      : full_name(std::move(name)),
        descriptor(full_name.c_str(), idempotency, payloads, streams, dedupe) {}
  DynamicMethod(const DynamicMethod&) = delete;
  DynamicMethod& operator=(const DynamicMethod&) = delete;

  const std::string full_name;
  const MethodDescriptor descriptor;
  // Prototypes: the schema's.
  const google::protobuf::Message* request = nullptr;
  const google::protobuf::Message* reply = nullptr;
};

class Schema {
 public:
  static constexpr size_t kMostFiles = 1000;
  static constexpr size_t kMostDepth = 1000;

  // `files` are serialized FileDescriptorProtos, each behind those that it imports. DATA_LOSS: they
  // do not parse, do not fit together, are too many, or their types nest too deep.
  static absl::StatusOr<std::unique_ptr<Schema>> Build(const std::vector<std::string>& files);

  // The method of "package.Service/Method". NOT_FOUND, which names the nearest methods.
  absl::StatusOr<std::unique_ptr<DynamicMethod>> Method(const std::string& service,
                                                        const std::string& method);
  // What the .proto says of a service, with the messages of its methods; of one method, with its
  // messages; of a message or an enum. NOT_FOUND, as above.
  absl::StatusOr<std::string> Text(const std::string& name) const;

 private:
  Schema() = default;

  google::protobuf::DescriptorPool pool_;
  google::protobuf::DynamicMessageFactory messages_;
};

// "package.Service" and "Method", of "package.Service/Method" or "package.Service.Method". The
// second is empty without a '/' if `dots` is false.
struct MethodName {
  std::string service;
  std::string method;
};
MethodName SplitMethodName(const std::string& name, bool dots);

}  // namespace verbena::command

#endif  // VERBENA_TOOLS_VERBENA_SCHEMA_H_

#include "verbena/rpc/reflection/files.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "fmt/format.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "google/protobuf/message.h"
#include "verbena/transport/base/status.h"

namespace verbena::internal {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::FileDescriptor;
using google::protobuf::FileDescriptorProto;
using google::protobuf::Message;
using google::protobuf::MessageLite;
using google::protobuf::ServiceDescriptor;

// The file of the service that `method` belongs to, by the pool of its messages. nullptr if its
// messages are lite ones, or if nothing links the file.
const FileDescriptor* FileOf(const ServerMethod& method) {
  const auto* message = dynamic_cast<const Message*>(method.request_prototype);
  if (message == nullptr) return nullptr;
  const DescriptorPool& pool = *message->GetDescriptor()->file()->pool();
  const ServiceDescriptor* service =
      pool.FindServiceByName(std::string(ServiceOf(*method.descriptor)));
  return service == nullptr ? nullptr : service->file();
}

// `file` behind all that it imports, each once.
void AddWithImports(const FileDescriptor& file, absl::flat_hash_set<const FileDescriptor*>& seen,
                    std::vector<const FileDescriptor*>& ordered) {
  if (!seen.insert(&file).second) return;
  for (int i = 0; i < file.dependency_count(); ++i) {
    AddWithImports(*file.dependency(i), seen, ordered);
  }
  ordered.push_back(&file);
}

bool Declares(const FileDescriptor& file, const std::string& name) {
  return file.pool()->FindFileContainingSymbol(name) == &file;
}

// The file that declares `name`: that of a served service, or one that such a file imports.
absl::StatusOr<const FileDescriptor*> Find(const std::string& name,
                                           absl::Span<const ServerMethod* const> served) {
  for (const ServerMethod* method : served) {
    if (ServiceOf(*method->descriptor) != name) continue;
    if (const FileDescriptor* file = FileOf(*method)) return file;
    const bool lite = dynamic_cast<const Message*>(method->request_prototype) == nullptr;
    return absl::FailedPreconditionError(
        lite ? fmt::format("the messages of {} are lite ones, which have no descriptors: take "
                           "`optimize_for = LITE_RUNTIME` out of its .proto",
                           name)
             : fmt::format("the descriptors of {} are not linked into the server: link the .pb.cc "
                           "of its .proto as a whole",
                           name));
  }
  absl::flat_hash_set<const FileDescriptor*> seen;
  std::vector<const FileDescriptor*> reached;
  std::string_view service;
  for (const ServerMethod* method : served) {
    if (std::exchange(service, ServiceOf(*method->descriptor)) == ServiceOf(*method->descriptor)) {
      continue;  // the methods of a service lie together
    }
    if (const FileDescriptor* file = FileOf(*method)) AddWithImports(*file, seen, reached);
  }
  for (const FileDescriptor* file : reached) {
    // Other services of these files are not the server's.
    if (Declares(*file, name) && file->pool()->FindServiceByName(name) == nullptr) return file;
  }
  return absl::NotFoundError(
      fmt::format("no service of this server is, or uses, {}", name.empty() ? "''" : name));
}

}  // namespace

std::string_view ServiceOf(const MethodDescriptor& method) {
  const std::string_view name = method.full_name;
  return name.substr(0, name.find('/'));
}

absl::StatusOr<std::vector<std::string>> FilesThatDeclare(
    std::string_view name, absl::Span<const ServerMethod* const> served, size_t max_bytes) {
  VERBENA_ASSIGN_OR_RETURN(const FileDescriptor* declaring, Find(std::string(name), served));
  absl::flat_hash_set<std::string_view> services;
  for (const ServerMethod* method : served) services.insert(ServiceOf(*method->descriptor));
  absl::flat_hash_set<const FileDescriptor*> seen;
  std::vector<const FileDescriptor*> ordered;
  AddWithImports(*declaring, seen, ordered);
  std::vector<std::string> files;
  size_t bytes = 0;
  for (const FileDescriptor* file : ordered) {
    FileDescriptorProto proto;
    file->CopyTo(&proto);
    auto& declared = *proto.mutable_service();
    for (int i = declared.size() - 1; i >= 0; --i) {
      if (!services.contains(file->service(i)->full_name())) declared.DeleteSubrange(i, 1);
    }
    files.push_back(proto.SerializeAsString());
    bytes += files.back().size();
    if (bytes > max_bytes) {
      return absl::ResourceExhaustedError(
          fmt::format("the .proto files that declare {} have more than {} bytes, which is the most "
                      "that an answer has",
                      name, max_bytes));
    }
  }
  return files;
}

}  // namespace verbena::internal

#include "verbena/rpc/detail/message.h"

#include <dlfcn.h>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "google/protobuf/descriptor_database.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/message.h"
#include "verbena/transport/base/check.h"

namespace verbena::internal {

// Bazel's tests have a shared library for each target: messages that are there may be those of this
// copy.
#ifdef VERBENA_IS_ONE_OBJECT
namespace {

// The file of the program or library that `address` belongs to.
const char* ObjectOf(const void* address) {
  Dl_info info;
  return dladdr(address, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "the program";
}

// The files of proto/. A linker takes only those from an archive that the program uses, so each may
// be the one that both copies have (tests/repository/cmake_test.py knows them all).
constexpr const char* kProtoFiles[] = {"verbena/handshake.proto", "verbena/options.proto",
                                       "verbena/remote_memory.proto", "verbena/status.proto"};

// The object of the copy of Verbena whose messages of `proto_file` protobuf has.
const char* ObjectWith(const char* proto_file) {
  const auto* const file =
      google::protobuf::DescriptorPool::generated_pool()->FindFileByName(proto_file);
  if (file == nullptr || file->message_type_count() == 0) return "a file that is not known";
  return ObjectOf(
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(file->message_type(0)));
}

// Protobuf takes the messages of each copy of Verbena when the copy is loaded, and knows them by
// their files. It would end the process at those of a second copy, in words that name neither. This
// function runs before protobuf's initializers, which have the priority 102. It asks the database:
// the pool itself would remember that there is no such file.
[[gnu::constructor(101)]] void RefuseSecondCopy() {
  for (const char* const proto_file : kProtoFiles) {
    google::protobuf::FileDescriptorProto file;
    const bool is_second =
        google::protobuf::DescriptorPool::internal_generated_database()->FindFileByName(proto_file,
                                                                                        &file);
    VERBENA_CHECK(!is_second)
        << "two copies of Verbena in one process, which share one protobuf: the first is in "
        << ObjectWith(proto_file) << ", the second in "
        << ObjectOf(reinterpret_cast<const void*>(&RefuseSecondCopy))
        << ". Link both with libverbena.so, of one version (docs/install.md, \"Plugins\")";
  }
}

}  // namespace
#endif  // VERBENA_IS_ONE_OBJECT

void LinkSecondCopyCheck() {}

std::string DeterministicBytesOf(const MessageLite& message) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  const bool written = message.SerializePartialToCodedStream(&coded);
  coded.Trim();
  if (!written) bytes.clear();
  return bytes;
}

}  // namespace verbena::internal

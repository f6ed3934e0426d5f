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

// The object of the copy of Verbena whose messages protobuf has.
const char* FirstObject() {
  const auto* const type =
      google::protobuf::DescriptorPool::generated_pool()->FindMessageTypeByName(
          "verbena.wire.StatusBody");
  if (type == nullptr) return "a file that is not known";  // another version, without this message
  return ObjectOf(google::protobuf::MessageFactory::generated_factory()->GetPrototype(type));
}

// Protobuf takes the messages of each copy of Verbena when the copy is loaded, and knows them by
// their names. It would end the process at those of a second copy, in words that name neither. This
// function runs before protobuf's initializers, which have the priority 102. It asks the database:
// the pool itself would remember that there is no such file.
[[gnu::constructor(101)]] void RefuseSecondCopy() {
  google::protobuf::FileDescriptorProto file;
  const bool is_second =
      google::protobuf::DescriptorPool::internal_generated_database()->FindFileByName(
          "verbena/status.proto", &file);
  VERBENA_CHECK(!is_second)
      << "two copies of Verbena in one process, which share one protobuf: the first is in "
      << FirstObject() << ", the second in "
      << ObjectOf(reinterpret_cast<const void*>(&RefuseSecondCopy))
      << ". Link both with libverbena.so, of one version (docs/install.md, \"Plugins\")";
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

#include "verbena/rpc/call/protobuf.h"

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"

namespace verbena::internal {

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

// Protobuf's message type, and functions for what differs between protobuf's versions.
//
// Of rpc/ and transport/, only this file, its source, rpc/codegen/protobuf.h and
// rpc/reflection/files.cc include headers of protobuf, or name more of protobuf than
// google::protobuf::MessageLite (a test holds this). So a newer protobuf is the work of these
// files. Built and tested with protobuf 3.21.
//
// Built by CMake, the source also has the check that ends the process if a second copy of Verbena
// is loaded (docs/install.md, "Plugins"): LinkSecondCopyCheck().
//
// Messages are borrowed for the call. Any thread.

#ifndef VERBENA_RPC_DETAIL_MESSAGE_H_
#define VERBENA_RPC_DETAIL_MESSAGE_H_

#include <string>

#include "google/protobuf/message_lite.h"
#include "verbena/transport/base/export.h"

namespace verbena::internal {

using google::protobuf::MessageLite;

// "demo.v1.SayRequest". protobuf 3.21 returns a string, newer versions a view.
inline std::string TypeNameOf(const MessageLite& message) {
  return std::string(message.GetTypeName());
}

// The message's bytes, also if it lacks required fields. Empty if they would be more than 2 GiB.
inline std::string PartialBytesOf(const MessageLite& message) {
  return message.SerializePartialAsString();
}

// PartialBytesOf(), but equal messages have equal bytes, also if they have maps.
VERBENA_EXPORT std::string DeterministicBytesOf(const MessageLite& message);

// Does nothing. The check runs before main(), by itself, in each program that this source is linked
// into. From an archive a linker takes only what somebody names: Runtime::Start() names this.
VERBENA_EXPORT void LinkSecondCopyCheck();

}  // namespace verbena::internal

#endif  // VERBENA_RPC_DETAIL_MESSAGE_H_

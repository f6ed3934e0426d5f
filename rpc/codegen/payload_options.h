// A method's option (verbena.method): its payloads, and whether servers run its calls only once.

#ifndef VERBENA_RPC_CODEGEN_PAYLOAD_OPTIONS_H_
#define VERBENA_RPC_CODEGEN_PAYLOAD_OPTIONS_H_

#include "google/protobuf/descriptor.h"

namespace verbena::codegen {

struct PayloadOptions {
  bool request = false;
  bool response = false;
};

// Reads the options through the extension that the user's import declares. The plugin has no
// extension of its own, so it never mistakes another project's option of the same number for ours.
PayloadOptions PayloadOptionsOf(const google::protobuf::MethodDescriptor& method);
// Its `dedupe`, read in the same way.
bool IsDeduplicated(const google::protobuf::MethodDescriptor& method);

}  // namespace verbena::codegen

#endif  // VERBENA_RPC_CODEGEN_PAYLOAD_OPTIONS_H_

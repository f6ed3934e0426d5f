// Comments of a .proto, carried over into generated code.

#ifndef VERBENA_RPC_CODEGEN_COMMENTS_H_
#define VERBENA_RPC_CODEGEN_COMMENTS_H_

#include <string>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/printer.h"

namespace verbena::codegen {

// The comment above a service or method (if there is none, the one behind it), as lines of "// …";
// empty if it has none. Blank lines inside stay. Comments detached by a blank line are not its own.
std::string CommentOf(const google::protobuf::ServiceDescriptor& service);
std::string CommentOf(const google::protobuf::MethodDescriptor& method);

// `text` as lines of "// …", with nothing in it that could end or continue a comment.
std::string AsComment(const std::string& text);

// Prints a comment of CommentOf() at the printer's indentation.
void PrintComment(const std::string& comment, google::protobuf::io::Printer& printer);

}  // namespace verbena::codegen

#endif  // VERBENA_RPC_CODEGEN_COMMENTS_H_

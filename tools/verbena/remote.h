// What the commands ask of a server by verbena.reflection.v1 and verbena.health.v1, with the remedy
// in each failure.
//
// Tasks on an executor of the channel's runtime; what they take is borrowed until they have ended.

#ifndef VERBENA_TOOLS_VERBENA_REMOTE_H_
#define VERBENA_TOOLS_VERBENA_REMOTE_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/verbena/schema.h"
#include "verbena/reflection.pb.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/task.h"

namespace verbena::command {

// A failure that the user's words caused, such as a wrong name: nothing was called. OK stays OK.
absl::Status Mistake(absl::Status status);
bool IsMistake(const absl::Status& status);
// `status` of a call, and not a Mistake(), whatever details the server gave it: its failure must
// not pass for the user's.
absl::Status FromServer(absl::Status status);

Task<absl::StatusOr<reflection::v1::ListReply>> ListServices(Channel& channel, Deadline deadline);

// The files that declare `name`, a service, message or enum. If there is no such name the failure
// is a Mistake() and names the nearest services.
Task<absl::StatusOr<std::unique_ptr<Schema>>> FetchSchema(Channel& channel, const std::string& name,
                                                          Deadline deadline);

// Whether `service`, or the whole server if that is empty, serves.
Task<absl::StatusOr<bool>> CheckHealth(Channel& channel, const std::string& service,
                                       Deadline deadline);

}  // namespace verbena::command

#endif  // VERBENA_TOOLS_VERBENA_REMOTE_H_

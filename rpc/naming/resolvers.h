// Resolvers of targets: fixed sets, names of DNS, and files; and, through a Directory
// (registrar.h), the servers of etcd.
//
// Each serves one channel (resolver.h). No executor blocks, and none waits for the threads of
// RunBlocking(), which the program may keep busy for long: names are looked up and files are read
// on threads that nobody waits for (Lookups).

#ifndef VERBENA_RPC_NAMING_RESOLVERS_H_
#define VERBENA_RPC_NAMING_RESOLVERS_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/naming/target.h"
#include "verbena/rpc/resolver.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/export.h"
#include "verbena/transport/base/lookups.h"
#include "verbena/transport/base/name_lookup.h"
#include "verbena/transport/base/random.h"
#include "verbena/transport/coro/sync.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

// The resolver of a target, which is no PlainTarget. FAILED_PRECONDITION: the program does not link
// the target's directory.
VERBENA_EXPORT absl::StatusOr<std::shared_ptr<Resolver>> MakeResolver(Target target);

// A set that never changes.
class VERBENA_EXPORT StaticResolver final : public Resolver {
 public:
  explicit StaticResolver(std::vector<ResolvedServer> servers) : servers_(std::move(servers)) {}
  Task<absl::StatusOr<std::vector<ResolvedServer>>> Next() override;

 private:
  const std::vector<ResolvedServer> servers_;
  bool given_ = false;
};

// Times a resolver's looks: one after each period, or earlier if asked.
//
// Periods vary at random by a fifth, so that clients which began together do not stay in step. A
// look that was asked for comes about a second after the last one. While the asking goes on and
// looks find nothing new, it comes later and later, up to a period after the last one: a server
// that is down for long is no reason to look more often.
class VERBENA_EXPORT PeriodicLook {
 public:
  // The period doubles from `first` to `longest`. `random` outlives it.
  PeriodicLook(Duration first, Duration longest, Random& random = Random::Real());
  // Waits until it is time to look; at once the first time. Not OK when cancelled.
  Task<absl::Status> Due();
  // Look earlier.
  void Hasten() { asked_.Set(); }
  // A look had something new, so there may be more to come.
  void NoteChange(TimePoint now);
  // The resolver has looked without being due. Periods begin with the first again.
  void NoteLook(TimePoint now);

 private:
  void PlanNext(TimePoint now);

  Backoff periods_;
  Backoff pauses_;  // ahead of looks that were asked for
  TimePoint earliest_ = TimePoint();
  TimePoint due_ = TimePoint();
  Event asked_;
};

// Each address of a name is a server, but for those to which this host has no route, and those of
// the family that has fewer: hosts with both an IPv4 and an IPv6 address would be two servers. A
// lookup that failed is repeated soon, as if asked for.
class VERBENA_EXPORT DnsResolver final : public Resolver {
 public:
  // `lookups` outlives it.
  explicit DnsResolver(DnsTarget target, NameLookups& lookups = NameLookups::System())
      : target_(std::move(target)), lookups_(lookups) {}
  Task<absl::StatusOr<std::vector<ResolvedServer>>> Next() override;
  void Refresh() override { look_.Hasten(); }

  static constexpr Duration kPeriod = std::chrono::seconds(30);

 private:
  Task<absl::StatusOr<std::vector<ResolvedServer>>> Look();

  const DnsTarget target_;
  NameLookups& lookups_;
  std::vector<ResolvedServer> last_;  // the last good answer
  PeriodicLook look_{kPeriod, kPeriod};
};

// FileContent: the bytes of a file, or why there are none. The values are plain, since they cross
// threads.
struct FileContent {
  std::string bytes = {};  // if it is OK
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string why = {};  // if it is not

  absl::Status status() const { return absl::Status(code, why); }
};

// FileReads: Lookups whose keys are paths of files.
class VERBENA_EXPORT FileReads final : public Lookups<FileContent> {
 public:
  // For tests: in another way than the system's.
  explicit FileReads(LookUp read) : Lookups("verbena-files", std::move(read)) {}

  // The process's own, for files of at most FileResolver::kMaxBytes. Never destroyed.
  static FileReads& System();
};

class VERBENA_EXPORT FileResolver final : public Resolver {
 public:
  // `reads` outlives it.
  explicit FileResolver(std::string path, FileReads& reads = FileReads::System())
      : path_(std::move(path)), reads_(reads) {}
  // Returns only what differs from the set before.
  Task<absl::StatusOr<std::vector<ResolvedServer>>> Next() override;

  static constexpr Duration kPeriod = std::chrono::milliseconds(500);
  static constexpr size_t kMaxBytes = size_t{1} << 20;

 private:
  Task<absl::StatusOr<std::string>> Read();

  const std::string path_;
  FileReads& reads_;
  std::string content_;  // of the last good set, or of the last error
  bool read_ = false;
  PeriodicLook look_{kPeriod, kPeriod};
};

// A list of servers in a file: a line for each server, with its addresses and options.
//
//   # address            options
//   10.0.0.7:4000        name=storage-7 weight=3 zone=a
//   10.0.0.8:4000|10.1.0.8:4000
//
// A server of weight 0 takes no calls, and is left out of the set: so operators drain it.
//
// A pure function. Names, zones and addresses are of at most 255 printable ASCII characters. Errors
// name the file and the line, up to three of them, and show at most 100 bytes of each text.

// INVALID_ARGUMENT also for a list without a server: a file that is being written may be empty.
VERBENA_EXPORT absl::StatusOr<std::vector<ResolvedServer>> ParseServerList(std::string_view path,
                                                                           std::string_view text);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_NAMING_RESOLVERS_H_

// LinkRef: a checked way back to a link, for an object that may outlive the link, its endpoint and
// its executor.
//
// A value that allocates nothing. It is copied and destroyed on any thread. The header includes
// none of libibverbs.

#ifndef VERBENA_TRANSPORT_LINK_LINK_REF_H_
#define VERBENA_TRANSPORT_LINK_LINK_REF_H_

#include <cstdint>
#include <memory>

#include "verbena/transport/base/export.h"

namespace verbena {

class Scheduler;

namespace internal {

class Endpoint;
class Link;

class VERBENA_EXPORT LinkRef {
 public:
  // Of no link.
  LinkRef() = default;
  // Call it on the link's executor.
  explicit LinkRef(const Link& link);

  // Whether `scheduler` is the link's executor, which may be gone.
  bool IsOn(const Scheduler* scheduler) const { return scheduler == scheduler_; }
  // The link while it is open, else nullptr. Precondition: this thread is its executor's.
  Link* Open() const;
  // Link::identity(), also when the link is gone.
  uint64_t identity() const { return identity_; }

 private:
  std::weak_ptr<const bool> endpoint_alive_;
  Endpoint* endpoint_ = nullptr;
  const Scheduler* scheduler_ = nullptr;  // only to be compared
  // The link's key.
  uint32_t slot_ = 0;
  uint32_t generation_ = 0;
  uint64_t identity_ = 0;
};

}  // namespace internal
}  // namespace verbena

#endif  // VERBENA_TRANSPORT_LINK_LINK_REF_H_

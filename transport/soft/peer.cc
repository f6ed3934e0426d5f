#include "verbena/transport/soft/peer.h"

#include <sys/eventfd.h>
#include <unistd.h>

namespace verbena::soft {

Peer::~Peer() {
  if (doorbell_fd_ >= 0) close(doorbell_fd_);
}

void Peer::Wake(CqControl& control) {
  if (control.doorbell.exchange(1, std::memory_order_seq_cst) != 0) return;
  if (doorbell_fd_ >= 0) eventfd_write(doorbell_fd_, 1);
}

}  // namespace verbena::soft

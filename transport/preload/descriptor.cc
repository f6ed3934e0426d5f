#include "verbena/transport/preload/descriptor.h"

#include <fcntl.h>
#include <poll.h>

#include <cerrno>

namespace verbena::internal::preload {

void MakeBlocking(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags >= 0) fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
}

bool AwaitReadable(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0) return false;
  if ((flags & O_NONBLOCK) != 0) {
    errno = EAGAIN;
    return false;
  }
  pollfd watched{.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&watched, 1, -1) == 1;
}

}  // namespace verbena::internal::preload

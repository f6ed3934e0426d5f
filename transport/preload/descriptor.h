// Descriptors of events as libibverbs has them: whoever asks for an event waits for it, unless the
// program made the descriptor non-blocking.

#ifndef VERBENA_TRANSPORT_PRELOAD_DESCRIPTOR_H_
#define VERBENA_TRANSPORT_PRELOAD_DESCRIPTOR_H_

namespace verbena::internal::preload {

// The soft device reads its descriptors only when something waits, so they may block.
void MakeBlocking(int fd);

// Waits until `fd` is readable. False, with errno set, if the program made it non-blocking (EAGAIN)
// or a signal came (EINTR).
bool AwaitReadable(int fd);

}  // namespace verbena::internal::preload

#endif  // VERBENA_TRANSPORT_PRELOAD_DESCRIPTOR_H_

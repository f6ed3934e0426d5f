// PolledCompletions: how many completions of the current poll an endpoint has yet to handle.
//
// By this a link decides whether an answer may leave at once. Part of an Endpoint, on its
// executor's thread.

#ifndef VERBENA_TRANSPORT_LINK_POLLED_COMPLETIONS_H_
#define VERBENA_TRANSPORT_LINK_POLLED_COMPLETIONS_H_

namespace verbena::internal {

struct PolledCompletions {
  // The completion that is being handled is the only one.
  bool is_one = false;
  // How many are still to be handled after it.
  int left = 0;
  // A teardown empties the queue: nothing may be posted meanwhile.
  bool draining = false;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_POLLED_COMPLETIONS_H_

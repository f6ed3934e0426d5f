// This workspace's own header, by the name that Verbena's has in its repository.

#ifndef VERBENA_TESTS_CONSUMER_RPC_SERVICE_H_
#define VERBENA_TESTS_CONSUMER_RPC_SERVICE_H_

namespace consumer {

inline constexpr char kWhoseHeader[] = "the consumer's";

}  // namespace consumer

#endif  // VERBENA_TESTS_CONSUMER_RPC_SERVICE_H_

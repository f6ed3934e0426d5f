// This workspace's own header, by the name that Verbena's has in its repository.

#ifndef CONSUMER_RPC_SERVICE_H_
#define CONSUMER_RPC_SERVICE_H_

namespace consumer {

inline constexpr char kWhoseHeader[] = "the consumer's";

}  // namespace consumer

#endif  // CONSUMER_RPC_SERVICE_H_

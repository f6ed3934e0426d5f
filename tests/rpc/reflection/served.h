// Services for tests of reflection: one whose file declares another one, and one of lite messages.

#ifndef VERBENA_TESTS_RPC_REFLECTION_SERVED_H_
#define VERBENA_TESTS_RPC_REFLECTION_SERVED_H_

#include "tests/rpc/reflection/lite.verbena.pb.h"
#include "tests/rpc/reflection/partly.verbena.pb.h"

namespace verbena {

class PartlyService final : public testing::partly::Served::Service {
 public:
  Task<absl::Status> Ask(ServerContext&, const testing::partly::Question& request,
                         testing::partly::Answer& reply) override {
    reply.set_text(request.text());
    co_return absl::OkStatus();
  }
};

class LiteService final : public testing::lite::Notes::Service {
 public:
  Task<absl::Status> Keep(ServerContext&, const testing::lite::Note& request,
                          testing::lite::Note& reply) override {
    reply.set_text(request.text());
    co_return absl::OkStatus();
  }
};

}  // namespace verbena

#endif  // VERBENA_TESTS_RPC_REFLECTION_SERVED_H_

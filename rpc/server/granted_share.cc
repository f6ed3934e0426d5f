#include "verbena/rpc/server/granted_share.h"

#include <utility>

namespace verbena::internal {
namespace {

// Owns itself until the memory is free.
class GrantShare final : public BlockListener {
 public:
  GrantShare(size_t bytes, std::shared_ptr<ServerClient> client,
             std::shared_ptr<MemoryHolders> holders)
      : bytes_(bytes), client_(std::move(client)), holders_(std::move(holders)) {}

  void OnBlockHome(size_t) override {
    client_->EndGrant(bytes_);
    if (holders_ != nullptr) holders_->grants -= bytes_;
    delete this;
  }

 private:
  const size_t bytes_;
  const std::shared_ptr<ServerClient> client_;
  const std::shared_ptr<MemoryHolders> holders_;
};

}  // namespace

void ReturnWithMemory(Buffer landing, size_t bytes, ServerClient& client,
                      std::shared_ptr<MemoryHolders> holders) {
  auto* share = new GrantShare(bytes, client.shared_from_this(), std::move(holders));
  if (landing) {
    landing.set_listener(*share);
  } else {
    share->OnBlockHome(bytes);
  }
}

}  // namespace verbena::internal

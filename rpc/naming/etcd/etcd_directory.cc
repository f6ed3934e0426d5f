// Enters etcd into the programs that link //rpc:etcd (rpc/naming/directory.h).

#include <memory>
#include <utility>

#include "verbena/rpc/etcd.h"
#include "verbena/rpc/naming/directory.h"
#include "verbena/rpc/naming/etcd/etcd_registrar.h"
#include "verbena/rpc/naming/etcd/etcd_resolver.h"
#include "verbena/rpc/naming/etcd/server_value.h"
#include "verbena/rpc/naming/target.h"

namespace verbena::internal {
namespace {

static_assert(EtcdTarget::kMaxEndpoints == EtcdClient::kMaxEndpoints);

EtcdOptions OptionsOf(EtcdTarget& target) {
  return {.endpoints = std::move(target.endpoints),
          .tls = target.tls,
          .ca_file = std::move(target.ca_file),
          .certificate_file = std::move(target.certificate_file),
          .key_file = std::move(target.key_file)};
}

class EtcdDirectory final : public Directory {
 public:
  std::shared_ptr<Resolver> MakeResolver(EtcdTarget target) const override {
    EtcdOptions options = OptionsOf(target);
    return std::make_shared<EtcdResolver>(std::move(options), std::move(target.prefix));
  }
  std::unique_ptr<Registrar> MakeRegistrar(EtcdTarget target, ServerEntry entry,
                                           Duration ttl) const override {
    EtcdOptions options = OptionsOf(target);
    return std::make_unique<EtcdRegistrar>(std::move(options), target.prefix + entry.server.name,
                                           EncodeServerValue(entry), ttl);
  }
};

[[maybe_unused]] const bool entered = [] {
  Directory::Enter(*new EtcdDirectory());
  return true;
}();

}  // namespace
}  // namespace verbena::internal

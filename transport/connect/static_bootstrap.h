// StaticBootstrap: peers by fixed names, from a table that the program or its configuration has.
//
// For clusters whose members are known beforehand and that want no resolver in the way: channels
// and servers use names, the table says what each stands for, and another bootstrap connects. All
// processes can be given the same table. Immutable. The other bootstrap must outlive it.
//
//   VERBENA_ASSIGN_OR_RETURN(StaticAddresses addresses, ParseStaticAddresses(
//       "# name     address\n"
//       "storage-7  10.0.0.7:4000\n"));
//   StaticBootstrap bootstrap(*tcp, addresses);
//   Runtime::Start({.use_bootstrap = &bootstrap});   // Channel(*runtime, "storage-7")

#ifndef VERBENA_TRANSPORT_CONNECT_STATIC_BOOTSTRAP_H_
#define VERBENA_TRANSPORT_CONNECT_STATIC_BOOTSTRAP_H_

#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "verbena/transport/connect/bootstrap.h"

namespace verbena {

// Name -> address.
using StaticAddresses = std::map<std::string, std::string>;

// Each line has a name and an address, separated by blanks; '#' begins a comment. INVALID_ARGUMENT
// names the line that is something else, or that repeats a name.
absl::StatusOr<StaticAddresses> ParseStaticAddresses(const std::string& text);

class StaticBootstrap final : public Bootstrap {
 public:
  StaticBootstrap(Bootstrap& below, StaticAddresses addresses);

  // NOT_FOUND lists the names of the table. Otherwise fails as the other bootstrap does.
  Task<absl::StatusOr<std::unique_ptr<MessageStream>>> Connect(std::string target) override;
  absl::StatusOr<std::unique_ptr<MessageListener>> Listen(const std::string& address) override;

 private:
  absl::StatusOr<std::string> AddressOf(const std::string& name) const;

  Bootstrap& below_;
  const StaticAddresses addresses_;
};

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_CONNECT_STATIC_BOOTSTRAP_H_

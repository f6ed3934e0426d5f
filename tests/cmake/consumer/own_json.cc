// A program that compiles Boost.JSON itself, beside the copy inside Verbena, and has both read
// JSON: Verbena reads a service config.

#include <boost/json/src.hpp>
#include <iostream>

#include "verbena/rpc/policy.h"

int main() {
  constexpr std::string_view kText =
      R"({"methodConfig": [{"name": [{"service": "hello.Greeter"}], "timeout": "1s"}]})";
  const boost::json::value own = boost::json::parse(kText);
  const auto config = verbena::ParseServiceConfig(kText);
  if (!config.ok()) {
    std::cerr << config.status() << std::endl;
    return 1;
  }
  std::cout << "both read " << boost::json::serialize(own) << std::endl;
  return 0;
}

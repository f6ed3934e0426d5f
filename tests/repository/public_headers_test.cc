// The public headers of rpc compile, and include neither verbs nor liburing nor Asio.

#include "tests/repository/rpc_headers.h"

#include <gtest/gtest.h>

namespace {

TEST(PublicHeadersTest, RpcDoesNotPullInVerbs) {
#ifdef INFINIBAND_VERBS_H
  FAIL() << "a public rpc header includes infiniband/verbs.h";
#endif
}

TEST(PublicHeadersTest, RpcDoesNotPullInLiburing) {
#ifdef LIB_URING_H
  FAIL() << "a public rpc header includes liburing.h";
#endif
}

TEST(PublicHeadersTest, RpcDoesNotPullInAsio) {
#ifdef BOOST_ASIO_DETAIL_CONFIG_HPP
  FAIL() << "a public rpc header includes Asio";
#endif
}

}  // namespace

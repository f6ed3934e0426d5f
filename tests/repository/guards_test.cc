// public_headers_test trusts these names: each must really be what its library defines.

#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <liburing.h>

#include <boost/asio/detail/config.hpp>

namespace {

TEST(GuardsTest, EachLibraryStillDefinesTheMacroThatBetraysIt) {
#if !defined(INFINIBAND_VERBS_H) || !defined(LIB_URING_H) || !defined(BOOST_ASIO_DETAIL_CONFIG_HPP)
  FAIL() << "an include guard was renamed: change it here and in public_headers_test.cc";
#endif
}

}  // namespace

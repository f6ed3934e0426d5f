// Shows that links to one address share a source as long as one of them is there, and that a name
// that stands for many peers is another source than an address of the same name.

#include "verbena/transport/link/peer_source.h"

#include <gtest/gtest.h>

namespace verbena::internal {
namespace peer_sources_test {

TEST(PeerSourcesTest, LinksToOneAddressShareASource) {
  PeerSources sources;
  PeerSource& first = sources.Join("10.0.0.1", true);
  EXPECT_EQ(&sources.Join("10.0.0.1", true), &first);
  EXPECT_EQ(first.links, 2u);
  EXPECT_EQ(sources.size(), 1u);
  EXPECT_FALSE(sources.Leave(first));
  EXPECT_EQ(sources.size(), 1u);
  EXPECT_TRUE(sources.Leave(first));
  EXPECT_EQ(sources.size(), 0u);
}

TEST(PeerSourcesTest, UnboundedNameIsASourceOfItsOwn) {
  PeerSources sources;
  PeerSource& bounded = sources.Join("local", true);
  PeerSource& unbounded = sources.Join("local", false);
  EXPECT_NE(&bounded, &unbounded);
  EXPECT_TRUE(bounded.bounded);
  EXPECT_FALSE(unbounded.bounded);
  EXPECT_TRUE(sources.Leave(bounded));
  EXPECT_EQ(sources.alone(), &unbounded);
}

TEST(PeerSourcesTest, AloneOnlyWithoutOthers) {
  PeerSources sources;
  EXPECT_EQ(sources.alone(), nullptr);
  PeerSource& first = sources.Join("10.0.0.1", true);
  EXPECT_EQ(sources.alone(), &first);
  PeerSource& second = sources.Join("10.0.0.2", true);
  EXPECT_EQ(sources.alone(), nullptr);
  sources.Leave(first);
  EXPECT_EQ(sources.alone(), &second);
}

}  // namespace peer_sources_test
}  // namespace verbena::internal

// Subsets of many servers cover these evenly, differ between clients, and change little with the
// set.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "verbena/rpc/client/picker.h"
#include "verbena/rpc/client/subchannels.h"

namespace verbena::internal {
namespace subset_test {

constexpr size_t kSubset = 20;

std::vector<uint64_t> Hashes(int servers) {
  std::vector<uint64_t> hashes;
  for (int i = 0; i < servers; ++i) hashes.push_back(StableHash("server-" + std::to_string(i)));
  return hashes;
}

// As Subchannels takes them: those with the highest ranks.
std::set<uint64_t> SubsetOf(uint64_t client, const std::vector<uint64_t>& servers) {
  std::vector<std::pair<uint64_t, uint64_t>> ranked;
  for (const uint64_t server : servers) ranked.emplace_back(SubsetRank(client, server), server);
  std::sort(ranked.rbegin(), ranked.rend());
  std::set<uint64_t> subset;
  for (size_t i = 0; i < kSubset; ++i) subset.insert(ranked[i].second);
  return subset;
}

uint64_t ClientOf(int number) { return StableHash("client-" + std::to_string(number)); }

TEST(SubsetTest, ManyClientsCoverTheServersEvenly) {
  const std::vector<uint64_t> servers = Hashes(100);
  std::vector<int> clients(servers.size());
  for (int client = 0; client < 1000; ++client) {
    const std::set<uint64_t> subset = SubsetOf(ClientOf(client), servers);
    for (size_t i = 0; i < servers.size(); ++i) clients[i] += subset.contains(servers[i]) ? 1 : 0;
  }
  // 200 on average; five standard deviations of a binomial distribution.
  for (const int each : clients) EXPECT_NEAR(each, 200, 64);
}

TEST(SubsetTest, AServerThatComesOrGoesMovesOneLinkOfAClientAtMost) {
  std::vector<uint64_t> servers = Hashes(100);
  for (int client = 0; client < 50; ++client) {
    const std::set<uint64_t> before = SubsetOf(ClientOf(client), servers);
    std::vector<uint64_t> fewer = servers;
    fewer.erase(fewer.begin() + client);
    const std::set<uint64_t> after = SubsetOf(ClientOf(client), fewer);
    std::vector<uint64_t> kept;
    std::set_intersection(before.begin(), before.end(), after.begin(), after.end(),
                          std::back_inserter(kept));
    EXPECT_EQ(kept.size(), before.contains(servers[client]) ? kSubset - 1 : kSubset);
  }
}

}  // namespace subset_test
}  // namespace verbena::internal

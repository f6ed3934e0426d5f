// LaneGeometry: how many lines the two rings of a lane have (lane.h). A value.

#ifndef VERBENA_TRANSPORT_SOFT_LANE_GEOMETRY_H_
#define VERBENA_TRANSPORT_SOFT_LANE_GEOMETRY_H_

#include <cstdint>

#include "verbena/transport/soft/message.h"

namespace verbena::internal::soft {

struct LaneGeometry {
  uint32_t request_lines = 4096;
  uint32_t answer_lines = 2048;

  // Checks the geometry of a lane that a peer announces: within what anybody configures.
  bool valid() const {
    constexpr uint32_t kMin = 4 * (kMaxFragmentBytes + kLineBytes) / kLineBytes;
    constexpr uint32_t kMax = (1u << 30) / kLineBytes;
    const auto good = [](uint32_t lines) {
      return lines >= kMin && lines <= kMax && (lines & (lines - 1)) == 0;
    };
    return good(request_lines) && good(answer_lines);
  }
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_LANE_GEOMETRY_H_

// VERBENA_MUTANT(fault): a place where a known fault can be planted, so that ./dev mutants sees
// whether a test would catch it.
//
// False, and free, in every build but that of ./dev mutants (--config=mutants). There it is true in
// a process whose environment names the fault by its number (fault.h): VERBENA_PLANTED_FAULT=0 is
// the first. Only that build finds a misspelt name.
//
//   if (!VERBENA_MUTANT(kRkeyRangeUnchecked) && !region.Contains(addr, length)) {

#ifndef VERBENA_TRANSPORT_LOG_MUTANT_H_
#define VERBENA_TRANSPORT_LOG_MUTANT_H_

#ifdef VERBENA_MUTANTS
#include <cstdlib>

#include "verbena/transport/log/fault.h"

namespace verbena::internal::mutant {

inline bool Planted(PlantedFault fault) {
  static const char* const number = std::getenv("VERBENA_PLANTED_FAULT");
  static const int planted = number == nullptr ? -1 : std::atoi(number);
  return planted == static_cast<int>(fault);
}

}  // namespace verbena::internal::mutant

#define VERBENA_MUTANT(fault) \
  (::verbena::internal::mutant::Planted(::verbena::internal::mutant::PlantedFault::fault))
#else
#define VERBENA_MUTANT(fault) false
#endif

#endif  // VERBENA_TRANSPORT_LOG_MUTANT_H_

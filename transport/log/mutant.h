// VERBENA_MUTANT(fault): a place where a known fault can be planted, so that ./dev mutants sees
// whether a test would catch it.
//
// False, and free, in every build but those of ./dev mutants, which define VERBENA_MUTANT_FAULT as
// one Fault for the file that holds it. Each fault has one place in one source file, and a line in
// tools/dev/mutant_table.py that names the test which must then fail.
//
//   if (!VERBENA_MUTANT(kRkeyRangeUnchecked) && !region.Contains(addr, length)) {

#ifndef VERBENA_TRANSPORT_LOG_MUTANT_H_
#define VERBENA_TRANSPORT_LOG_MUTANT_H_

namespace verbena::mutant {

enum class Fault {
  kNoRepollAfterArm,      // an executor sleeps without polling its CQ again after arming it
  kRkeyRangeUnchecked,    // a peer may write and read past the region that its rkey names
  kLkeyPdUnchecked,       // a QP may use memory registered in another protection domain
  kCreditLeakedOnError,   // what a lost link had borrowed stays lent
  kUnsignalledFreesSlot,  // an unsignalled WR gives its send queue slot back at once
  kFlushNotDelivered,     // a QP in the error state keeps its outstanding WRs to itself
  kStaleWrIdAccepted,     // a late completion is taken for the slot's next owner's
  kDeadlineNotCarried,    // a request leaves without the time that its caller has left
};

}  // namespace verbena::mutant

#ifdef VERBENA_MUTANT_FAULT
#define VERBENA_MUTANT(fault) \
  (::verbena::mutant::Fault::fault == ::verbena::mutant::Fault::VERBENA_MUTANT_FAULT)
#else
// Names the fault, so that a misspelt one does not compile.
#define VERBENA_MUTANT(fault) (static_cast<void>(::verbena::mutant::Fault::fault), false)
#endif

#endif  // VERBENA_TRANSPORT_LOG_MUTANT_H_

"""The faults of ./dev mutants, and the test that must catch each. transport/log/mutant.h names them."""

import dataclasses


@dataclasses.dataclass
class Mutant:
    fault: str  # the enumerator of verbena::mutant::Fault
    target: str  # the test that fails when it is planted
    filter: str  # its cases, as GoogleTest's --gtest_filter


MUTANTS = [
    Mutant("kNoRepollAfterArm", "//tests/transport/executor:sleep_test",
           "*ACompletionJustBeforeArmingIsSeenThoughItRaisesNoEvent"),
    Mutant("kRkeyRangeUnchecked", "//tests/transport/soft:one_sided_test",
           "*WriteOutsideTheRegistrationFailsTheInitiator*"),
    Mutant("kLkeyPdUnchecked", "//tests/transport/soft:in_process_test",
           "*MemoryOfAnotherDomainIsRefused"),
    Mutant("kCreditLeakedOnError", "//tests/transport/link:credits_test",
           "*WhatWasLentComesHomeWithTheLink"),
    Mutant("kUnsignalledFreesSlot", "//tests/transport/soft:in_process_test",
           "*OnlyASignalledOneFreesTheirSlots"),
    Mutant("kFlushNotDelivered", "//tests/transport/soft:in_process_test",
           "*ErrorStateFlushesBothQueuesInOrder"),
    Mutant("kStaleWrIdAccepted", "//tests/transport/link:stale_completion_test", "*"),
    Mutant("kDeadlineNotCarried", "//tests/rpc:lifetime_test", "*TheDeadlineIsCarriedToTheServer"),
]

"""The faults of ./dev mutants, and the test that must catch each. transport/log/mutant.h names them."""

import dataclasses


@dataclasses.dataclass
class Mutant:
    fault: str  # the enumerator of verbena::mutant::Fault
    target: str  # the test that fails when it is planted
    filter: str  # its cases, as GoogleTest's --gtest_filter


MUTANTS = [
    Mutant(
        fault="kNoRepollAfterArm",
        target="//tests/transport/executor:sleep_test",
        filter="*ACompletionJustBeforeArmingIsSeenThoughItRaisesNoEvent",
    ),
]

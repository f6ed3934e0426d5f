// Every public header, and generated code with its mocks, as a project compiles them that takes no
// warning and does not call them the system's.

#include <verbena/testing.h>
#include <verbena/verbena.h>

#include "border_mock.verbena.pb.h"
#include "exchange_mock.verbena.pb.h"

// Files that coroutines read, write, rename and remove without blocking their executor.
//
// A File belongs to the executor that opened it, and must be destroyed before the runtime. Any
// thread may call its methods; their Tasks run on that executor alone. A failure is a Status that
// names the file, the place in it and errno.
//
//   VERBENA_CO_ASSIGN_OR_RETURN(File file, co_await File::Open("/data/v0", {.flags = O_RDWR}));
//   VERBENA_CO_RETURN_IF_ERROR(co_await file.Write(block.view(), /*offset=*/0));
//   VERBENA_CO_RETURN_IF_ERROR(co_await RenameFile("/data/v0", "/data/v1").In(nullptr));

#ifndef VERBENA_RPC_FILE_H_
#define VERBENA_RPC_FILE_H_

#include "verbena/transport/file/file.h"  // IWYU pragma: export

#endif  // VERBENA_RPC_FILE_H_

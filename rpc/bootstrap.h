// Bootstraps: how two processes find each other before their links connect.
//
// TcpBootstrap is the default. FileBootstrap uses a directory that all hosts share, LocalBootstrap
// serves one process, and StaticBootstrap gives names to addresses of another bootstrap. A program
// may implement Bootstrap itself.
//
//   VERBENA_ASSIGN_OR_RETURN(auto bootstrap, FileBootstrap::Create("/shared/job-17"));
//   auto runtime = Runtime::Start({.use_bootstrap = bootstrap.get()});

#ifndef VERBENA_RPC_BOOTSTRAP_H_
#define VERBENA_RPC_BOOTSTRAP_H_

#include "verbena/transport/connect/bootstrap.h"        // IWYU pragma: export
#include "verbena/transport/connect/file_bootstrap.h"   // IWYU pragma: export
#include "verbena/transport/connect/local_bootstrap.h"  // IWYU pragma: export
#include "verbena/transport/connect/tcp_bootstrap.h"    // IWYU pragma: export

#endif  // VERBENA_RPC_BOOTSTRAP_H_

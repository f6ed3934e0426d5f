// The service of docs/guide.md: blocks in memory. Its handlers run on one executor.

#ifndef VERBENA_TESTS_DOCS_BLOCK_SERVICE_H_
#define VERBENA_TESTS_DOCS_BLOCK_SERVICE_H_

#include <cstring>
#include <string>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tests/docs/blocks.pb.h"
#include "tests/docs/blocks.verbena.pb.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/memory.h"
#include "verbena/rpc/service.h"
#include "verbena/rpc/stream.h"
#include "verbena/rpc/task.h"

namespace guide {

using verbena::Buffer;
using verbena::ServerContext;
using verbena::ServerReader;
using verbena::ServerReaderWriter;
using verbena::ServerWriter;
using verbena::Task;
using verbena::WithPayload;

class BlockService final : public v1::Blocks::Service {
 public:
  Task<absl::Status> Write(ServerContext& context, const v1::WriteRequest& request,
                           v1::WriteReply&) override {
    if (request.name().empty()) co_return absl::InvalidArgumentError("name is empty");
    if (!context.has_request_payload()) co_return absl::InvalidArgumentError("no payload");
    const Buffer block = context.TakeRequestPayload();
    blocks_[request.name()].assign(block.data(), block.size());
    co_return absl::OkStatus();
  }

  Task<absl::Status> Read(ServerContext& context, const v1::ReadRequest& request,
                          v1::ReadReply&) override {
    const auto found = blocks_.find(request.name());
    if (found == blocks_.end()) co_return NoSuchBlock(request.name());
    const std::string bytes = found->second;  // AllocateBuffer() may wait, and the map may change
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer block, co_await context.AllocateBuffer(bytes.size()));
    std::memcpy(block.data(), bytes.data(), bytes.size());
    context.SetResponsePayload(std::move(block));
    co_return absl::OkStatus();
  }

  Task<absl::Status> Stat(ServerContext&, const v1::StatRequest& request,
                          v1::StatReply& reply) override {
    const auto found = blocks_.find(request.name());
    if (found == blocks_.end()) co_return NoSuchBlock(request.name());
    reply.set_bytes(found->second.size());
    co_return absl::OkStatus();
  }

 private:
  static absl::Status NoSuchBlock(const std::string& name) {
    return absl::NotFoundError(absl::StrCat("there is no block '", name, "'"));
  }

  absl::flat_hash_map<std::string, std::string> blocks_;
};

class NameService final : public v1::Names::Service {
 public:
  Task<absl::Status> List(ServerContext&, const v1::ListRequest& request,
                          ServerWriter<v1::Name>& names) override {
    const absl::btree_set<std::string> all = names_;  // Write() may wait, and the set may change
    for (const std::string& stored : all) {
      if (!stored.starts_with(request.prefix())) continue;
      v1::Name name;
      name.set_name(stored);
      VERBENA_CO_RETURN_IF_ERROR(co_await names.Write(name));
    }
    co_return absl::OkStatus();
  }

  Task<absl::Status> Reserve(ServerContext&, ServerReader<v1::Name>& names,
                             v1::ReserveReply& reply) override {
    v1::Name name;
    for (;;) {
      VERBENA_CO_ASSIGN_OR_RETURN(const bool read, co_await names.Read(name));
      if (!read) break;  // the client has sent all
      if (names_.insert(name.name()).second) reply.set_count(reply.count() + 1);
    }
    co_return absl::OkStatus();
  }

  Task<absl::Status> Check(ServerContext&,
                           ServerReaderWriter<v1::Name, v1::CheckReply>& stream) override {
    v1::Name name;
    v1::CheckReply reply;
    for (;;) {
      VERBENA_CO_ASSIGN_OR_RETURN(const bool read, co_await stream.Read(name));
      if (!read) co_return absl::OkStatus();
      reply.set_taken(names_.contains(name.name()));
      VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(reply));
    }
  }

 private:
  absl::btree_set<std::string> names_;
};

class CopyService final : public v1::Copies::Service {
 public:
  Task<absl::Status> Export(ServerContext& context, const v1::ExportRequest&,
                            ServerWriter<WithPayload<v1::Name>>& blocks) override {
    const absl::btree_map<std::string, std::string> all = blocks_;
    v1::Name name;
    for (const auto& [key, bytes] : all) {
      VERBENA_CO_ASSIGN_OR_RETURN(const Buffer block,
                                  co_await context.AllocateBuffer(bytes.size()));
      std::memcpy(block.data(), bytes.data(), bytes.size());
      name.set_name(key);
      VERBENA_CO_RETURN_IF_ERROR(co_await blocks.Write(name, block.view()));
    }
    co_return absl::OkStatus();
  }

  Task<absl::Status> Import(ServerContext&, ServerReader<WithPayload<v1::Name>>& blocks,
                            v1::ImportReply& reply) override {
    WithPayload<v1::Name> block;
    for (;;) {
      VERBENA_CO_ASSIGN_OR_RETURN(const bool read, co_await blocks.Read(block));
      if (!read) co_return absl::OkStatus();
      blocks_[block->name()].assign(block.payload.data(), block.payload.size());
      reply.set_count(reply.count() + 1);
    }
  }

  void Store(const std::string& name, std::string bytes) { blocks_[name] = std::move(bytes); }

 private:
  absl::btree_map<std::string, std::string> blocks_;
};

}  // namespace guide

#endif  // VERBENA_TESTS_DOCS_BLOCK_SERVICE_H_

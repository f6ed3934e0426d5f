#include "verbena/rpc/admin/shared_text.h"

namespace verbena::internal {

std::shared_ptr<const std::string> SharedText::Get(TimePoint now,
                                                   absl::FunctionRef<std::string()> write) {
  if (last_ != nullptr) {
    if (now - written_ < kFresh) return last_;
    std::erase_if(earlier_, [](const auto& each) { return each.expired(); });
    const bool is_read = last_.use_count() > 1;
    if (is_read && earlier_.size() + 1 >= kMost) return last_;
    if (is_read) earlier_.emplace_back(last_);
    last_.reset();
  }
  last_ = std::make_shared<const std::string>(write());
  written_ = now;
  return last_;
}

}  // namespace verbena::internal

#include "verbena/rpc/server/call_link.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "verbena/transport/base/check.h"

namespace verbena::internal {

constinit CallSlots::Page CallSlots::no_page_;

CallSlots::~CallSlots() {
  for (uint32_t i = 0; i < page_count_; ++i) {
    if (pages_[i] != &no_page_) delete pages_[i];
  }
}

void CallSlots::AddPage(uint32_t index) {
  VERBENA_CHECK(index < kMaxPages) << "page " << index << " of " << kMaxPages;
  if (index >= page_count_) {
    const uint32_t count = std::bit_ceil(index + 1);
    auto pages = std::make_unique<Page*[]>(count);
    std::fill_n(std::copy_n(pages_.get(), page_count_, pages.get()), count - page_count_,
                &no_page_);
    pages_ = std::move(pages);
    page_count_ = count;
  }
  pages_[index] = spare_ != nullptr ? spare_.release() : new Page;
  if (index == 0) ++pages_[index]->running;
}

void CallSlots::DropPage(uint32_t index) {
  std::unique_ptr<Page> page(std::exchange(pages_[index], &no_page_));
  if (spare_ == nullptr) {
    spare_ = std::move(page);
  }
}

size_t CallSlots::pages() const {
  const auto absent = std::count(pages_.get(), pages_.get() + page_count_, &no_page_);
  return page_count_ - absent + (spare_ != nullptr ? 1 : 0);
}

}  // namespace verbena::internal

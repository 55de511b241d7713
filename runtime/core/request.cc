#include "request.h"

#include "error.h"

namespace ingot::core {

void RequestList::push_back(uint32_t slot) {
  Request& request = at(slot);
  request.next = plan::kNoneIndex;
  request.previous = last_;
  if (last_ == plan::kNoneIndex) {
    first_ = slot;
  } else {
    at(last_).next = slot;
  }
  last_ = slot;
  ++count_;
}

void RequestList::remove(uint32_t slot) {
  INGOT_ASSERT(count_ > 0, "request", "a request is removed from the list it is on");
  const Request& request = at(slot);
  if (request.previous == plan::kNoneIndex) {
    INGOT_ASSERT(first_ == slot, "request", "a request is removed from the list it is on");
    first_ = request.next;
  } else {
    at(request.previous).next = request.next;
  }
  if (request.next == plan::kNoneIndex) {
    last_ = request.previous;
  } else {
    at(request.next).previous = request.previous;
  }
  --count_;
}

uint32_t RequestList::rotate() {
  const uint32_t slot = first_;
  remove(slot);
  push_back(slot);
  return slot;
}

}  // namespace ingot::core

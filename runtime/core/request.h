// What the runtime knows of a request, in STATE, and the lists that requests are on. A request holds a slot
// from submit until its last event was taken, and a lease (granules) from submit until it ends.
#pragma once

#include <cstdint>

#include "regions.h"

namespace ingot::core {

enum class RequestState : uint32_t {
  kFree = 0,     // the slot is nobody's
  kPrefill = 1,  // prompt tokens remain to be written to KV
  kDecode = 2,   // one token to write, one to sample
  kEnded = 3,    // no lease; events remain to be polled
  kScore = 4,    // held by ingot_score
};

// One per slot (tensor "request"). Positions are half-open: tokens [0, length) are known, [0, written) are in
// KV.
struct Request {
  RequestState state;
  uint32_t generation;      // of the slot; the handle's high half
  uint32_t prompt_count;    // tokens of the prompt
  uint32_t length;          // tokens known: prompt and generated
  uint32_t written;         // tokens whose K and V are in the granules: the write position
  uint32_t capacity;        // tokens the lease was taken for: prompt + max_tokens
  uint32_t granules;        // granules of the lease
  plan::Finish finish;      // how it ended
  uint32_t ring_begin;      // oldest event in the ring
  uint32_t ring_count;      // events that wait to be polled
  uint32_t next, previous;  // neighbours on a list; kNoneIndex at its ends
  uint32_t padding[52];
};
static_assert(sizeof(Request) == 256);

// A list of request slots through Request::next and previous.
class RequestList {
 public:
  explicit RequestList(const Place* requests = nullptr) : requests_(requests) {}

  uint32_t first() const { return first_; }
  uint32_t count() const { return count_; }
  uint32_t next(uint32_t slot) const { return at(slot).next; }
  void push_back(uint32_t slot);
  void remove(uint32_t slot);
  // Moves the first slot to the end and returns it.
  uint32_t rotate();

 private:
  Request& at(uint32_t slot) const { return *requests_->at<Request>(slot); }

  const Place* requests_;
  uint32_t first_ = plan::kNoneIndex;
  uint32_t last_ = plan::kNoneIndex;
  uint32_t count_ = 0;
};

}  // namespace ingot::core

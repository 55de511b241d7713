// libFuzzer target: `verify` on any bytes, under ASan and UBSan. Whatever it accepts is walked: an operand, a
// kernel or a lifetime out of bounds aborts (INV-02, INV-03). What it refuses rarely becomes sound again by
// further damage, so most mutants begin as a plan that was sound. Prints at the end how many reasons were
// given.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "core/plan.h"
#include "fuzz_mutate.h"
#include "plan_walk.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

using ingot::plan::Reason;

constexpr uint32_t kReasons = static_cast<uint32_t>(Reason::kBadText) + 1;
uint64_t given[kReasons];

// The seeds, and what came to replace them: plans that verify accepted.
constexpr size_t kSoundMax = 64;
std::vector<std::vector<uint8_t>> sound;

void remember(const uint8_t* data, size_t size) {
  if (sound.size() < kSoundMax) {
    sound.emplace_back(data, data + size);
  } else {
    sound[given[0] % kSoundMax].assign(data, data + size);
  }
}

void print_reasons() {
  uint32_t reached = 0;
  for (const uint64_t count : given) reached += count != 0;
  std::fprintf(stderr, "reasons: %u of %u given; %llu plans were sound and walked\n", reached, kReasons,
               static_cast<unsigned long long>(given[0]));
  for (uint32_t r = 0; r < kReasons; ++r)
    if (given[r] == 0)
      std::fprintf(stderr, "never given: %u (%s)\n", r, ingot::reason_text(static_cast<Reason>(r)));
}

[[noreturn]] void stop(const char* what) {
  std::fprintf(stderr, "fuzz_verify: %s\n", what);
  std::abort();
}

// libFuzzer's own mutations, in place: what it would cut off keeps its old bytes.
void mutate_bytes(std::span<std::byte> bytes) {
  LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(bytes.data()), bytes.size(), bytes.size());
}

// A copy of exactly these bytes, aligned as a mapped file is, with ASan's guards on both sides.
class Aligned {
 public:
  explicit Aligned(size_t capacity)
      : data_(static_cast<std::byte*>(std::malloc(capacity + (capacity == 0)))) {
    if (data_ == nullptr) stop("out of memory");
  }
  ~Aligned() { std::free(data_); }
  Aligned(const Aligned&) = delete;
  Aligned& operator=(const Aligned&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::byte* data_;
};

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) { return std::atexit(print_reasons); }

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const Aligned copy(size);
  if (size != 0) std::memcpy(copy.data(), data, size);
  ingot::PlanView view;
  uint64_t index = 0;
  const Reason reason = ingot::verify({copy.data(), size}, &index, &view);
  const auto number = static_cast<uint32_t>(reason);
  if (number >= kReasons) stop("a reason that does not exist");
  ++given[number];
  if (reason == Reason::kOk) {
    if (index != 0) stop("a sound plan with an index");
    if (const char* wrong = ingot::test::walk(view); wrong != nullptr) stop(wrong);
    remember(data, size);
  } else if (view.header != nullptr) {
    stop("a refused plan filled the view");
  }
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  const Aligned copy(max_size);
  ingot::test::Dice dice(seed);
  const uint8_t* base = data;
  if (!sound.empty() && !dice.one_in(4)) {
    const std::vector<uint8_t>& chosen = sound[dice.below(sound.size())];
    if (chosen.size() <= max_size) {
      base = chosen.data();
      size = chosen.size();
    }
  }
  if (size != 0) std::memcpy(copy.data(), base, size);
  const size_t changed = ingot::test::mutate({copy.data(), max_size}, size, dice, mutate_bytes);
  if (changed != 0) std::memcpy(data, copy.data(), changed);
  return changed;
}

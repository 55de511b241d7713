// What Python's tests call by ctypes: the C++ verifier, SHA-256 by each of its two functions, and the walk
// over a plan whose records were damaged after it was verified.
#include "core/plan.h"

#include <cstring>

#include "core/sha256.h"
#include "plan_walk.h"

#define INGOT_TEST_API extern "C" __attribute__((visibility("default")))

namespace {

template <typename T>
std::span<const T> moved(std::span<const T> from, ptrdiff_t bytes) {
  return {reinterpret_cast<const T*>(reinterpret_cast<const std::byte*>(from.data()) + bytes), from.size()};
}

}  // namespace

// Reason and index for a plan in memory; `data` is aligned to 8 bytes.
INGOT_TEST_API uint32_t plan_test_verify(const std::byte* data, uint64_t bytes, uint64_t* index) {
  return static_cast<uint32_t>(ingot::verify({data, bytes}, index, nullptr));
}

// What the walk says about the records of `edited`, a plan laid out as `sound` is; nullptr: nothing.
INGOT_TEST_API const char* plan_test_walk(const std::byte* sound, const std::byte* edited, uint64_t bytes) {
  ingot::PlanView view;
  uint64_t index = 0;
  if (ingot::verify({sound, bytes}, &index, &view) != ingot::plan::Reason::kOk)
    return "the plan is not sound";
  const ptrdiff_t by = edited - sound;
  view.file = {edited, bytes};
  view.header = reinterpret_cast<const ingot::plan::Header*>(edited);
  view.sections = moved(view.sections, by);
  view.regions = moved(view.regions, by);
  view.tensors = moved(view.tensors, by);
  view.programs = moved(view.programs, by);
  view.commands = moved(view.commands, by);
  view.kernels = moved(view.kernels, by);
  return ingot::test::walk(view);
}

// Index of the tensor with this name, and that tensor's name again.
INGOT_TEST_API uint32_t plan_test_find(const std::byte* sound, uint64_t bytes, const char* name) {
  ingot::PlanView view;
  uint64_t index = 0;
  if (ingot::verify({sound, bytes}, &index, &view) != ingot::plan::Reason::kOk) return UINT32_MAX - 1;
  const uint32_t found = view.find(name);
  if (found != ingot::plan::kNoneIndex && view.name(view.tensors[found]) != name) return UINT32_MAX - 1;
  return found;
}

// Bytes of a section, or of region `region` for these counts when `kind` is 0.
INGOT_TEST_API uint64_t plan_test_bytes(const std::byte* sound, uint64_t bytes, uint32_t kind,
                                        uint32_t region, uint64_t granules, uint64_t requests) {
  ingot::PlanView view;
  uint64_t index = 0;
  if (ingot::verify({sound, bytes}, &index, &view) != ingot::plan::Reason::kOk) return UINT64_MAX;
  if (kind != 0) return view.section(static_cast<ingot::plan::Section>(kind)).size();
  return ingot::region_bytes(view.regions[region], granules, requests);
}

INGOT_TEST_API const char* plan_test_reason_text(uint32_t reason) {
  return ingot::reason_text(static_cast<ingot::plan::Reason>(reason));
}

INGOT_TEST_API int plan_test_has_sha_ni(void) { return ingot::sha256_sha_ni_supported() ? 1 : 0; }

// path 0: as the runtime chooses; 1: scalar; 2: the SHA extensions.
INGOT_TEST_API void plan_test_sha256(const std::byte* data, uint64_t bytes, uint32_t path,
                                     std::byte* digest) {
  const std::span<const std::byte> input(data, bytes);
  const ingot::Sha256Digest found =
      path == 0 ? ingot::sha256(input)
                : ingot::sha256_with(
                      path == 1 ? ingot::sha256_compress_scalar : ingot::sha256_compress_sha_ni, input);
  std::memcpy(digest, found.data(), found.size());
}

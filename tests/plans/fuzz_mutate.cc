#include "fuzz_mutate.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/plan.h"
#include "core/sha256.h"

namespace ingot::test {
namespace {

using plan::Section;
using Bytes = std::span<std::byte>;

struct Record {
  uint32_t kind;
  uint64_t offset, bytes, record_bytes;
  uint64_t count() const { return bytes / record_bytes; }
};

plan::Header& header_of(Bytes plan) { return *reinterpret_cast<plan::Header*>(plan.data()); }

std::span<plan::SectionRecord> table_of(Bytes plan) {
  const uint32_t count = std::min(header_of(plan).section_count, plan::kLimitSections);
  return {reinterpret_cast<plan::SectionRecord*>(plan.data() + plan::kSectionTableOffset), count};
}

// The sections that lie in the file, whatever else is wrong with the table.
std::vector<Record> sections_of(Bytes plan) {
  std::vector<Record> found;
  for (const plan::SectionRecord& section : table_of(plan)) {
    if (section.bytes == 0 || section.offset > plan.size() || section.bytes > plan.size() - section.offset)
      continue;
    uint32_t record_bytes = 1;
    for (const plan::SectionSize& size : plan::kSectionRecords)
      if (static_cast<uint32_t>(size.kind) == section.kind) record_bytes = size.record_bytes;
    found.push_back({section.kind, section.offset, section.bytes, record_bytes});
  }
  return found;
}

// A section of records (commands and tensors more often), or false.
bool pick_records(Bytes plan, Dice& dice, Record* record) {
  std::vector<Record> found;
  for (const Record& section : sections_of(plan)) {
    if (section.record_bytes == 1 || section.count() == 0) continue;
    const bool deep = section.kind == static_cast<uint32_t>(Section::kTensors) ||
                      section.kind == static_cast<uint32_t>(Section::kCommands);
    found.insert(found.end(), deep ? 4 : 1, section);
  }
  if (found.empty()) return false;
  *record = found[dice.below(found.size())];
  return true;
}

// Changes the unsigned integer of `width` bytes at `at` to one that is likely to matter.
void change_integer(Bytes plan, uint64_t at, uint64_t width, Dice& dice) {
  if (at + width > plan.size()) return;
  constexpr uint64_t kInteresting[] = {0,
                                       1,
                                       2,
                                       3,
                                       4,
                                       8,
                                       16,
                                       63,
                                       64,
                                       65,
                                       127,
                                       128,
                                       255,
                                       256,
                                       4095,
                                       4096,
                                       300,
                                       768,
                                       1u << 16,
                                       1u << 20,
                                       1u << 31,
                                       0xFFFFFFFFu,
                                       uint64_t{1} << 48,
                                       ~uint64_t{0}};
  uint64_t value = 0;
  std::memcpy(&value, plan.data() + at, width);
  const uint64_t step = uint64_t{1} << dice.below(8);
  switch (dice.below(8)) {
    case 0:
      value = kInteresting[dice.below(std::size(kInteresting))];
      break;
    case 1:
      value += step;
      break;
    case 2:
      value -= step;
      break;
    case 3:
      value ^= uint64_t{1} << dice.below(8 * width);
      break;
    case 4:
      value = dice.one_in(2) ? value * 2 : value / 2;
      break;
    case 5:
      value = dice.next();
      break;
    case 6:  // an aligned offset that wraps when bytes are added
      value = ~uint64_t{0} - 63 - 64 * dice.below(64);
      break;
    default:
      value = dice.below(256);
  }
  std::memcpy(plan.data() + at, &value, width);
}

// A field of natural alignment in [begin, begin + bytes): 4 or 8 bytes wide mostly.
void change_field(Bytes plan, uint64_t begin, uint64_t bytes, Dice& dice) {
  constexpr uint64_t kWidths[] = {4, 4, 4, 8, 8, 8, 1, 2};
  const uint64_t width = kWidths[dice.below(std::size(kWidths))];
  if (bytes >= width) change_integer(plan, begin + width * dice.below(bytes / width), width, dice);
}

// One field, one copied field, a copied or two swapped records.
void change_records(Bytes plan, Dice& dice) {
  Record section;
  if (!pick_records(plan, dice, &section)) return;
  const uint64_t size = section.record_bytes;
  std::byte* one = plan.data() + section.offset + size * dice.below(section.count());
  std::byte* two = plan.data() + section.offset + size * dice.below(section.count());
  switch (dice.below(8)) {
    case 0:
      std::memmove(one, two, size);
      break;
    case 1:
      if (one != two) std::swap_ranges(one, one + size, two);
      break;
    case 2:
    case 3: {  // plausible, but in the wrong place
      const uint64_t at = 4 * dice.below(size / 4);
      std::memmove(one + at, two + at, 4);
      break;
    }
    default:
      change_field(plan, static_cast<uint64_t>(one - plan.data()), size, dice);
  }
}

// Lays sections out again after one lost, gained or repeated a record, or was dropped. The new size, or 0
// when it would be larger than the buffer.
size_t reshape(Bytes buffer, size_t size, Dice& dice) {
  const Bytes plan = buffer.first(size);
  std::vector<Record> sections = sections_of(plan);
  if (sections.empty() || sections.back().kind != static_cast<uint32_t>(Section::kHashes)) return 0;
  sections.pop_back();
  if (sections.empty()) return 0;
  const uint64_t chosen = dice.below(sections.size());
  const uint64_t action = dice.below(8);
  std::vector<std::byte> out(plan.begin(), plan.begin() + plan::kPageBytes);
  std::vector<plan::SectionRecord> table;
  const auto round_up = [](uint64_t value) {
    return (value + plan::kPageBytes - 1) / plan::kPageBytes * plan::kPageBytes;
  };
  for (uint64_t s = 0; s < sections.size(); ++s) {
    const Record& section = sections[s];
    if (s == chosen && action == 0) continue;
    const Bytes from = plan.subspan(section.offset, section.bytes);
    std::vector<std::byte> content(from.begin(), from.end());
    if (s == chosen) {
      const auto unit = static_cast<ptrdiff_t>(section.record_bytes);
      const ptrdiff_t at = unit * static_cast<ptrdiff_t>(dice.below(section.count()));
      if (action < 4) {
        content.erase(content.begin() + at, content.begin() + at + unit);
      } else {
        const std::vector<std::byte> again(content.begin() + at, content.begin() + at + unit);
        content.insert(content.begin() + at, again.begin(), again.end());
      }
    }
    if (out.size() + content.size() > buffer.size()) return 0;
    out.resize(round_up(out.size()));
    table.push_back({section.kind, static_cast<uint32_t>(section.record_bytes), out.size(), content.size(),
                     content.size() / section.record_bytes});
    out.insert(out.end(), content.begin(), content.end());
  }
  out.resize(round_up(out.size()));
  const uint64_t chunks = (out.size() - plan::kPageBytes + plan::kChunkBytes - 1) / plan::kChunkBytes;
  const uint64_t hashes = plan::kHashBytes * chunks;
  table.push_back({static_cast<uint32_t>(Section::kHashes), 1, out.size(), hashes, hashes});
  out.resize(out.size() + hashes);
  if (out.size() > buffer.size() || table.size() > plan::kLimitSections) return 0;
  std::memcpy(buffer.data(), out.data(), out.size());
  std::byte* records = buffer.data() + plan::kSectionTableOffset;
  std::memset(records, 0, plan::kPageBytes - plan::kSectionTableOffset);
  std::memcpy(records, table.data(), table.size() * sizeof table[0]);
  header_of(buffer).section_count = static_cast<uint32_t>(table.size());
  return out.size();
}

void change_bytes(Bytes plan, Dice& dice, void (*mutate_bytes)(Bytes)) {
  const std::vector<Record> sections = sections_of(plan);
  if (sections.empty()) return mutate_bytes(plan);
  const Record& section = sections[dice.below(sections.size())];
  const uint64_t begin = dice.one_in(4) ? section.bytes - 1 : dice.below(section.bytes);  // ends matter
  mutate_bytes(plan.subspan(section.offset + begin, std::min<uint64_t>(section.bytes - begin, 64)));
}

size_t change(Bytes buffer, size_t size, Dice& dice, void (*mutate_bytes)(Bytes)) {
  const Bytes plan = buffer.first(size);
  const uint64_t action = dice.below(100);
  if (action < 60) {
    change_records(plan, dice);
  } else if (action < 68) {
    change_field(plan, 0, sizeof(plan::Header), dice);
  } else if (action < 73) {
    change_field(plan, plan::kSectionTableOffset, std::max<size_t>(table_of(plan).size_bytes(), 32), dice);
  } else if (action < 83) {
    change_bytes(plan, dice, mutate_bytes);
  } else if (action < 93) {
    const size_t reshaped = reshape(buffer, size, dice);
    if (reshaped != 0) return reshaped;
    change_records(plan, dice);
  } else if (action < 96) {
    change_integer(plan, dice.below(size), 1, dice);
  } else if (action < 98) {
    mutate_bytes(plan.first(plan::kPageBytes));
  } else if (size < buffer.size()) {
    buffer[size] = std::byte{0};
    return size + 1;
  }
  return size;
}

}  // namespace

void repair(Bytes plan) {
  plan::Header& header = header_of(plan);
  header.file_bytes = plan.size();
  for (const plan::SectionRecord& section : table_of(plan)) {
    if (section.kind != static_cast<uint32_t>(Section::kHashes) || section.offset < plan::kPageBytes ||
        section.offset > plan.size() || section.bytes > plan.size() - section.offset)
      continue;
    const Bytes hashes = plan.subspan(section.offset, section.bytes);
    for (uint64_t c = 0; plan::kPageBytes + c * plan::kChunkBytes < section.offset; ++c) {
      if (plan::kHashBytes * (c + 1) > hashes.size()) break;
      const uint64_t begin = plan::kPageBytes + c * plan::kChunkBytes;
      const uint64_t bytes = std::min<uint64_t>(plan::kChunkBytes, section.offset - begin);
      const Sha256Digest digest = sha256(plan.subspan(begin, bytes));
      std::memcpy(hashes.data() + plan::kHashBytes * c, digest.data(), digest.size());
    }
    const Sha256Digest root = sha256(hashes);
    std::memcpy(header.root_hash, root.data(), root.size());
  }
  std::memset(header.header_hash, 0, sizeof header.header_hash);
  const Sha256Digest digest = sha256(plan.first(plan::kPageBytes));
  std::memcpy(header.header_hash, digest.data(), digest.size());
}

size_t mutate(Bytes buffer, size_t size, Dice& dice, void (*mutate_bytes)(Bytes)) {
  if (size < plan::kPageBytes || dice.one_in(200)) {
    mutate_bytes(buffer.first(size));
    return size;
  }
  constexpr uint64_t kChanges[] = {1, 1, 1, 2, 3};
  for (uint64_t left = kChanges[dice.below(std::size(kChanges))]; left != 0; --left)
    size = change(buffer, size, dice, mutate_bytes);
  if (dice.one_in(100)) return dice.below(size);  // cut, with the hashes it had
  if (!dice.one_in(20)) repair(buffer.first(size));
  return size;
}

}  // namespace ingot::test

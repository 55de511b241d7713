// Memory, leases and request lists by themselves, and the invariants that abort: each deliberate violation
// runs in a child process that must die of SIGABRT and name the invariant.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "core/lease.h"
#include "core/memory.h"
#include "core/request.h"

namespace {

using namespace ingot::core;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "core_test: %s\n", what);
  std::exit(1);
}

// Runs `violate` in a child: it must abort and print `id`.
template <typename Violate>
void must_abort(const char* id, Violate violate) {
  int ends[2];
  require(::pipe(ends) == 0, "a pipe");
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    violate();
    ::_exit(0);
  }
  ::close(ends[1]);
  char text[1024] = {};
  size_t length = 0;
  for (ssize_t got; (got = ::read(ends[0], text + length, sizeof text - 1 - length)) > 0;)
    length += static_cast<size_t>(got);
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  require(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, id);
  require(std::strstr(text, id) != nullptr, text);
}

void check_memory() {
  Memory memory;
  for (const uint64_t alignment : {uint64_t{4096}, uint64_t{2} << 20}) {
    const std::byte* block = memory.reserve(100001, alignment, alignment > 4096);
    require(block != nullptr && reinterpret_cast<uintptr_t>(block) % alignment == 0,
            "a reservation is aligned");
    for (uint64_t i = 0; i < 100001; ++i) require(block[i] == std::byte{0}, "a reservation is zero");
  }
  require(memory.bytes() == 2 * ((100001 + page_bytes() - 1) / page_bytes() * page_bytes()),
          "bytes are whole pages");
  Memory other;
  other.take(memory);
  require(memory.bytes() == 0 && other.bytes() != 0, "take moves everything");
  require(other.reserve(uint64_t{1} << 60, 4096, false) == nullptr, "what nobody has is refused");
  require(available_bytes() > 0, "the machine says what is free");
  must_abort("INV-01", [] {
    Memory sealed;
    sealed.seal();
    sealed.reserve(4096, 4096, false);
  });
}

struct PoolOfEight {
  std::vector<std::byte> links = std::vector<std::byte>(8 * 64);
  GranulePool pool;
  PoolOfEight() { pool.reset({links.data(), 64}, 8); }
};

void check_leases() {
  PoolOfEight eight;
  uint32_t first[8], second[8];
  eight.pool.take(first, 3);
  eight.pool.take(second, 5);
  bool seen[8] = {};
  for (uint32_t i = 0; i < 3; ++i) seen[first[i]] = true;
  for (uint32_t i = 0; i < 5; ++i) require(!seen[second[i]], "INV-04: a granule is in one lease");
  require(eight.pool.free_count() == 0, "all are taken");
  eight.pool.give(first, 3);
  eight.pool.take(first, 2);
  eight.pool.give(second, 5);
  eight.pool.give(first, 2);
  require(eight.pool.free_count() == 8, "all come back");
  require(GranulePool::granules_for(1) == 1 && GranulePool::granules_for(128) == 1 &&
              GranulePool::granules_for(129) == 2,
          "tokens round up to granules");
  must_abort("INV-04", [] {
    PoolOfEight pool;
    uint32_t table[9];
    pool.pool.take(table, 9);
  });
  must_abort("INV-04", [] {
    PoolOfEight pool;
    uint32_t table[8];
    pool.pool.take(table, 2);
    table[1] = table[0];
    pool.pool.give(table, 2);  // one granule twice
  });
  must_abort("INV-04", [] {
    PoolOfEight pool;
    uint32_t table[8];
    pool.pool.take(table, 1);
    table[0] = 8;
    pool.pool.give(table, 1);  // no granule of the pool
  });
}

void check_lists() {
  std::vector<Request> requests(6);
  const Place place{reinterpret_cast<std::byte*>(requests.data()), sizeof(Request)};
  RequestList list(&place);
  for (uint32_t slot = 0; slot < 6; ++slot) list.push_back(slot);
  list.remove(0);
  list.remove(3);
  list.remove(5);
  require(list.rotate() == 1 && list.rotate() == 2 && list.rotate() == 4 && list.rotate() == 1,
          "a list turns in order");
  list.remove(4);
  list.remove(1);
  list.remove(2);
  require(list.count() == 0 && list.first() == ingot::plan::kNoneIndex, "a list can be emptied");
  list.push_back(3);
  require(list.first() == 3 && list.count() == 1, "and filled again");
}

}  // namespace

int main() {
  check_memory();
  check_leases();
  check_lists();
  std::puts("ok");
}

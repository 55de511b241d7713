/* ingot.h from C11: a plan is opened, sized, run in the caller's own memory and closed; every stage is
 * checked. c_api_test PLAN POISON: the caller's memory is filled with the byte POISON before it is handed
 * over. Prints the tokens. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ingot.h"

static void require(int holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "c_api_test: %s\n", what);
  exit(1);
}

int main(int argc, char** argv) {
  require(argc == 3, "usage: c_api_test PLAN POISON");
  ingot_error error;
  ingot_plan* plan = NULL;
  require(ingot_plan_open(argv[1], &plan, &error) == INGOT_OK, error.text);
  ingot_options options;
  memset(&options, 0, sizeof options);
  options.kv_tokens = 1000; /* rounded up to 8 granules */
  ingot_region regions[INGOT_REGION_COUNT];
  uint64_t total = 0;
  require(ingot_regions(plan, &options, regions, &total, &error) == INGOT_OK, error.text);
  uint64_t sum = 0;
  for (int i = 0; i < INGOT_REGION_COUNT; ++i) sum += regions[i].bytes;
  require(sum == total, "the total is the sum of the regions");

  unsigned char* block =
      aligned_alloc(2u << 20, (total + (2u << 20) - 1) / (2u << 20) * (2u << 20) + (2u << 20));
  require(block != NULL, "memory");
  memset(block, atoi(argv[2]), total);
  memset(block + total, 0xA5, 4096);
  options.memory = block + 1;
  ingot_engine* engine = NULL;
  require(ingot_create(plan, &options, &engine, &error) == INGOT_ERROR_OPTION && engine == NULL,
          "alignment is checked");
  options.memory = block;
  ingot_options wrong = options;
  wrong.lock_memory = 1; /* the block is the caller's to lock */
  require(ingot_create(plan, &wrong, &engine, &error) == INGOT_ERROR_OPTION,
          "lock_memory with the caller's memory");
  wrong = options;
  wrong.isa = 3;
  require(ingot_create(plan, &wrong, &engine, &error) == INGOT_ERROR_OPTION, "isa is checked");
  wrong = options;
  wrong.lock_memory = 2;
  require(ingot_create(plan, &wrong, &engine, &error) == INGOT_ERROR_OPTION, "lock_memory is checked");
  require(ingot_create(plan, &options, &engine, &error) == INGOT_OK, error.text);
  ingot_plan_close(plan); /* the engine holds what it needs */

  ingot_handle handle = 0;
  uint32_t prompt[] = {3, 9, 27, 33, 5};
  require(ingot_submit(engine, prompt, 5, NULL, &handle, &error) == INGOT_ERROR_STATE,
          "no request before seal");
  require(ingot_seal(engine, &error) == INGOT_OK, error.text);
  require(ingot_seal(engine, &error) == INGOT_ERROR_STATE, "sealed once");
  ingot_sampling sampling = ingot_sampling_default();
  sampling.max_tokens = 40;
  sampling.ignore_eos = 1;
  require(ingot_submit(engine, prompt, 5, &sampling, &handle, &error) == INGOT_OK, error.text);
  for (uint32_t rows = 1; rows != 0;) require(ingot_step(engine, &rows, &error) == INGOT_OK, error.text);
  ingot_event events[64];
  uint32_t count = 0;
  require(ingot_poll(engine, handle, events, 64, &count, &error) == INGOT_OK && count == 40, "40 events");
  require(events[39].finish == INGOT_FINISH_LENGTH && events[39].position == 44, "the last event says so");
  for (uint32_t i = 0; i < count; ++i) printf("%u\n", events[i].token);
  require(ingot_poll(engine, handle, events, 64, &count, &error) == INGOT_ERROR_HANDLE,
          "the handle is spent");
  require(ingot_step(engine, NULL, NULL) == INGOT_OK, "error and rows may be NULL");
  ingot_stats stats;
  ingot_get_stats(engine, &stats);
  require(stats.granules == 8 && stats.granules_free == 8, "the lease is returned");
  ingot_close(engine);
  for (int i = 0; i < 4096; ++i) require(block[total + i] == 0xA5, "nothing is written beyond the total");
  free(block);
  return 0;
}

/* Ingot's C API (C11): open a plan, know its memory, create an engine, seal it, run requests, close.
 *
 * Every call that can fail returns an ingot_code and, when `error` is not NULL, fills it: code, the limit,
 * what was found, and a sentence. Nothing throws or aborts because of its arguments' values; passing NULL
 * where a pointer is required is a programmer error and aborts. An engine is driven by one thread at a time:
 * ingot_step, ingot_submit, ingot_poll, ingot_cancel and ingot_score must not run at the same time on one
 * engine. Plans are immutable and may be shared by engines and threads.
 */
#ifndef INGOT_H
#define INGOT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define INGOT_API
#else
#define INGOT_API __attribute__((visibility("default")))
#endif

#define INGOT_TOP_LOGPROBS_MAX 20
#define INGOT_LOGIT_BIAS_MAX 64
#define INGOT_STOP_TOKENS_MAX 16
#define INGOT_REGION_COUNT 6
#define INGOT_NONE 0xFFFFFFFFu

/* One code per kind of failure; the HTTP status that a service gives it stands behind it. */
typedef enum ingot_code {
  INGOT_OK = 0,
  INGOT_ERROR_FILE = 1,         /* 500 the plan file cannot be opened, read or mapped (actual: errno) */
  INGOT_ERROR_PLAN = 2,         /* 500 the plan was refused by verify (actual: reason code, limit: index) */
  INGOT_ERROR_TARGET = 3,       /* 500 the plan is for a target that this build or machine cannot run */
  INGOT_ERROR_MEMORY = 4,       /* 500 a region does not fit (limit: bytes available or 0, actual: needed) */
  INGOT_ERROR_OPTION = 5,       /* 400 an open option is out of range */
  INGOT_ERROR_STATE = 6,        /* 500 the call is not allowed in this state (init, sealed, closed) */
  INGOT_ERROR_PROMPT_EMPTY = 7, /* 400 a request has no prompt token */
  INGOT_ERROR_PROMPT_LONG = 8,  /* 400 prompt + 1 exceeds the context (limit: longest prompt) */
  INGOT_ERROR_TOKENS_LONG = 9,  /* 400 prompt + max_tokens exceeds the context (limit: most max_tokens) */
  INGOT_ERROR_TOKEN = 10,       /* 400 a token id is not below the vocabulary */
  INGOT_ERROR_SAMPLING = 11,    /* 400 a sampling field is out of range */
  INGOT_ERROR_BUSY = 12,        /* 429 no request slot is free (limit: slots) */
  INGOT_ERROR_CAPACITY = 13,    /* 429 not enough free granules now (limit: free, actual: needed) */
  INGOT_ERROR_HANDLE = 14,      /* 404 the handle names no live request */
  INGOT_ERROR_THREADS = 15,     /* 500 a worker thread could not be started */
  INGOT_ERROR_POOL = 16,        /* 400 the pool chosen at open cannot hold this request even when empty */
  INGOT_ERROR_SELFTEST = 17     /* 500 the golden prompt gave other logits (limit, actual: millionths) */
} ingot_code;

typedef struct ingot_error {
  ingot_code code;
  uint32_t reason; /* plan reason code when code is INGOT_ERROR_PLAN */
  uint64_t limit;
  uint64_t actual;
  char text[256]; /* lower case: what was found, what is allowed, what to do; always terminated */
} ingot_error;

typedef struct ingot_plan ingot_plan;
typedef struct ingot_engine ingot_engine;
typedef uint64_t ingot_handle; /* slot in the low 32 bits, generation in the high 32 */

typedef enum ingot_isa {
  INGOT_ISA_AUTO = 0, /* the best that CPUID reports */
  INGOT_ISA_SCALAR = 1,
  INGOT_ISA_AVX2 = 2
} ingot_isa;

/* Chosen at open, under the plan's ceilings. Zero means the plan's default (threads: one per core). */
typedef struct ingot_options {
  uint64_t kv_tokens;   /* pool size in tokens, rounded up to granules of 128 */
  uint32_t requests;    /* most requests that run at once */
  uint32_t threads;     /* workers, this thread included, at most 256 */
  uint32_t isa;         /* ingot_isa; every choice gives the same bits */
  uint32_t step_rows;   /* most rows of a step, at most the plan's largest bucket; bounds a step's time */
  uint32_t lock_memory; /* 1: mlock the regions; a failure is an error */
  void* memory; /* caller-owned block of *total_bytes bytes (ingot_regions), aligned to 2 MiB, or NULL:
                   the regions lie in it one after another, in order; it outlives the engine */
} ingot_options;

typedef struct ingot_region {
  char name[16];
  uint64_t bytes; /* reserved at create */
  uint64_t bytes_fixed;
  uint64_t bytes_per_granule;
  uint64_t bytes_per_request;
} ingot_region;

typedef struct ingot_plan_info {
  uint8_t hash[32]; /* the plan's identity */
  uint64_t file_bytes;
  uint32_t target, vocabulary, layers, hidden, query_heads, kv_heads, head_size, context;
  uint32_t rows_max, head_rows_max, requests_max, requests_default, default_max_tokens;
  uint64_t kv_tokens_max, kv_tokens_default;
  uint32_t bos_token, eos_count;
  uint32_t eos_tokens[8];
  uint64_t weight_bytes; /* WEIGHTS and SCALES: read once by a step */
} ingot_plan_info;

/* How one request samples. Start from ingot_sampling_default(). Ranges are in the plan's SamplingRecord. */
typedef struct ingot_sampling {
  uint64_t seed;
  float temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
  uint32_t top_k;
  uint32_t top_logprobs; /* 0 to 20 */
  uint32_t want_logprob;
  uint32_t min_tokens;
  uint32_t max_tokens; /* INGOT_NONE: the plan's default, capped by the context */
  uint32_t ignore_eos;
  uint32_t stop_count, bias_count;
  uint32_t stop_tokens[INGOT_STOP_TOKENS_MAX];
  uint32_t bias_tokens[INGOT_LOGIT_BIAS_MAX];
  float bias_values[INGOT_LOGIT_BIAS_MAX];
} ingot_sampling;

typedef enum ingot_finish {
  INGOT_FINISH_NONE = 0,
  INGOT_FINISH_STOP = 1,     /* an eos or stop token was sampled; it is the event's token */
  INGOT_FINISH_LENGTH = 2,   /* max_tokens were generated */
  INGOT_FINISH_CANCELLED = 3 /* the event carries no token */
} ingot_finish;

typedef struct ingot_event {
  uint32_t token, position, finish, top_count;
  float logprob;
  uint8_t padding[12];
  uint32_t top_tokens[INGOT_TOP_LOGPROBS_MAX];
  float top_logprobs[INGOT_TOP_LOGPROBS_MAX];
} ingot_event;

typedef struct ingot_stats {
  uint64_t steps, rows, tokens_generated, requests_finished;
  uint32_t requests_running, requests;
  uint32_t granules_free, granules;
  uint64_t bytes_reserved;
  uint64_t allocations_after_seal; /* always 0: one more aborts */
  uint32_t threads, isa;
} ingot_stats;

/* Maps and verifies a plan file. On success *plan is owned by the caller until ingot_plan_close. */
INGOT_API ingot_code ingot_plan_open(const char* path, ingot_plan** plan, ingot_error* error);
INGOT_API void ingot_plan_close(ingot_plan* plan);
INGOT_API void ingot_plan_get_info(const ingot_plan* plan, ingot_plan_info* info);
/* A text section: "meta", "drift", "tokenizer", "template". *bytes is 0 and the result NULL when absent. */
INGOT_API const char* ingot_plan_text(const ingot_plan* plan, const char* section, uint64_t* bytes);

/* Verifies a plan held in memory at a multiple of 8 bytes; returns the reason code (0: sound) and an index of
 * the offending record. */
INGOT_API uint32_t ingot_verify(const void* data, uint64_t bytes, uint64_t* index);
INGOT_API const char* ingot_reason_text(uint32_t reason);

/* Exact bytes of every region for these options, before anything is allocated. */
INGOT_API ingot_code ingot_regions(const ingot_plan* plan, const ingot_options* options,
                                   ingot_region regions[INGOT_REGION_COUNT], uint64_t* total_bytes,
                                   ingot_error* error);

/* Reserves the regions, fills weights and scales, starts workers. The plan may be closed afterwards. */
INGOT_API ingot_code ingot_create(const ingot_plan* plan, const ingot_options* options, ingot_engine** engine,
                                  ingot_error* error);
/* From here on the runtime allocates nothing. */
INGOT_API ingot_code ingot_seal(ingot_engine* engine, ingot_error* error);
INGOT_API void ingot_close(ingot_engine* engine);

INGOT_API ingot_sampling ingot_sampling_default(void);

/* Admits a request: leases granules for prompt + max_tokens, or refuses with a number. Once admitted it
 * finishes. */
INGOT_API ingot_code ingot_submit(ingot_engine* engine, const uint32_t* prompt, uint32_t prompt_count,
                                  const ingot_sampling* sampling, ingot_handle* handle, ingot_error* error);
/* Runs one step over all running requests. *rows: rows that were computed, 0 when there was nothing to do. */
INGOT_API ingot_code ingot_step(ingot_engine* engine, uint32_t* rows, ingot_error* error);
/* Takes up to `capacity` events of a request. When the event with finish != 0 was taken, the handle ends. */
INGOT_API ingot_code ingot_poll(ingot_engine* engine, ingot_handle handle, ingot_event* events,
                                uint32_t capacity, uint32_t* count, ingot_error* error);
/* Ends a request at the next step boundary; its last event has INGOT_FINISH_CANCELLED. */
INGOT_API ingot_code ingot_cancel(ingot_engine* engine, ingot_handle handle, ingot_error* error);
INGOT_API void ingot_get_stats(const ingot_engine* engine, ingot_stats* stats);

/* Runs `count` tokens as a request of its own, `chunk` rows a step (0: the largest bucket), and writes the
 * logits after each of them: logits is (count, vocabulary) float32. Needs a free slot and ceil(count / 128)
 * free granules. */
INGOT_API ingot_code ingot_score(ingot_engine* engine, const uint32_t* tokens, uint32_t count, uint32_t chunk,
                                 float* logits, ingot_error* error);

#ifdef __cplusplus
}
#endif
#endif

// Ingot for C++20: RAII over ingot.h, header-only, without exceptions. Every call that can fail returns a
// Result, which holds either its value or an ingot_error. An Engine is driven by one thread at a time; a Plan
// may be shared.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "ingot.h"

namespace ingot {

// A value or an error. Taking the one that is not there prints the error and aborts.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : content_(std::in_place_index<0>, std::move(value)) {}
  Result(const ingot_error& error) : content_(std::in_place_index<1>, error) {}

  explicit operator bool() const { return content_.index() == 0; }
  T& operator*() & { return value(); }
  T&& operator*() && { return std::move(value()); }
  T* operator->() { return &value(); }
  T& value() {
    if (T* value = std::get_if<0>(&content_)) return *value;
    std::fprintf(stderr, "ingot: %s\n", error().text);
    std::abort();
  }
  const ingot_error& error() const {
    if (const ingot_error* error = std::get_if<1>(&content_)) return *error;
    std::fprintf(stderr, "ingot: a result that holds a value was asked for its error\n");
    std::abort();
  }

 private:
  std::variant<T, ingot_error> content_;
};

// For calls that return nothing but success.
struct Done {};

// Open options and sampling are the C structs, ready with their defaults.
struct Options : ingot_options {
  Options() : ingot_options{} {}
};
struct Sampling : ingot_sampling {
  Sampling() : ingot_sampling(ingot_sampling_default()) {}
};

class Plan {
 public:
  static Result<Plan> open(const char* path) {
    ingot_plan* plan = nullptr;
    ingot_error error;
    if (ingot_plan_open(path, &plan, &error) != INGOT_OK) return error;
    return Plan(plan);
  }

  ingot_plan_info info() const {
    ingot_plan_info info;
    ingot_plan_get_info(plan_.get(), &info);
    return info;
  }
  // "meta", "drift", "tokenizer", "template"; empty when the plan has none.
  std::string_view text(const char* section) const {
    uint64_t bytes = 0;
    const char* content = ingot_plan_text(plan_.get(), section, &bytes);
    return {content, static_cast<size_t>(bytes)};
  }
  // Exact bytes that an engine with these options reserves.
  Result<std::vector<ingot_region>> regions(const Options& options = {}) const {
    std::vector<ingot_region> regions(INGOT_REGION_COUNT);
    ingot_error error;
    if (ingot_regions(plan_.get(), &options, regions.data(), nullptr, &error) != INGOT_OK) return error;
    return regions;
  }
  const ingot_plan* get() const { return plan_.get(); }

 private:
  struct Close {
    void operator()(ingot_plan* plan) const { ingot_plan_close(plan); }
  };
  explicit Plan(ingot_plan* plan) : plan_(plan) {}
  std::unique_ptr<ingot_plan, Close> plan_;
};

class Engine {
 public:
  // Reserves, fills, starts and seals: after this the engine allocates nothing. The plan may be closed.
  static Result<Engine> open(const Plan& plan, const Options& options = {}) {
    ingot_engine* created = nullptr;
    ingot_error error;
    if (ingot_create(plan.get(), &options, &created, &error) != INGOT_OK) return error;
    Engine engine(created);
    if (ingot_seal(created, &error) != INGOT_OK) return error;
    return engine;
  }

  Result<ingot_handle> submit(std::span<const uint32_t> prompt, const Sampling& sampling = {}) {
    ingot_handle handle = 0;
    ingot_error error;
    const uint32_t count = prompt.size() < UINT32_MAX ? static_cast<uint32_t>(prompt.size()) : UINT32_MAX;
    if (ingot_submit(engine_.get(), prompt.data(), count, &sampling, &handle, &error) != INGOT_OK)
      return error;
    return handle;
  }
  // One step over all running requests; rows computed, 0 when there is nothing to do.
  Result<uint32_t> step() {
    uint32_t rows = 0;
    ingot_error error;
    if (ingot_step(engine_.get(), &rows, &error) != INGOT_OK) return error;
    return rows;
  }
  // Events that wait, at most events.size(); the event with `finish` set is the request's last.
  Result<uint32_t> poll(ingot_handle handle, std::span<ingot_event> events) {
    uint32_t count = 0;
    ingot_error error;
    const uint32_t capacity = events.size() < UINT32_MAX ? static_cast<uint32_t>(events.size()) : UINT32_MAX;
    if (ingot_poll(engine_.get(), handle, events.data(), capacity, &count, &error) != INGOT_OK) return error;
    return count;
  }
  Result<Done> cancel(ingot_handle handle) {
    ingot_error error;
    if (ingot_cancel(engine_.get(), handle, &error) != INGOT_OK) return error;
    return Done{};
  }
  ingot_stats stats() const {
    ingot_stats stats;
    ingot_get_stats(engine_.get(), &stats);
    return stats;
  }

  // Runs one request to its end, stepping all others along; calls on_event(const ingot_event&) for every
  // token and returns how it finished.
  template <typename OnEvent>
  Result<ingot_finish> generate(std::span<const uint32_t> prompt, const Sampling& sampling,
                                OnEvent&& on_event) {
    Result<ingot_handle> handle = submit(prompt, sampling);
    if (!handle) return handle.error();
    for (;;) {
      if (Result<uint32_t> rows = step(); !rows) return rows.error();
      ingot_event events[4];
      Result<uint32_t> count = poll(*handle, events);
      if (!count) return count.error();
      for (uint32_t i = 0; i < *count; ++i) {
        on_event(std::as_const(events[i]));
        if (events[i].finish != INGOT_FINISH_NONE) return static_cast<ingot_finish>(events[i].finish);
      }
    }
  }

  ingot_engine* get() { return engine_.get(); }

 private:
  struct Close {
    void operator()(ingot_engine* engine) const { ingot_close(engine); }
  };
  explicit Engine(ingot_engine* engine) : engine_(engine) {}
  std::unique_ptr<ingot_engine, Close> engine_;
};

}  // namespace ingot

// The Python module `_ingot` (nanobind) over the C API; `_ingot.pyi` states its interface. The only file of
// the runtime in which exceptions exist. An Engine's methods take turns under a mutex and never hold the GIL
// while they compute or wait, so that Python threads can neither overlap calls on one engine nor block each
// other.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "ingot.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Tokens = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Logits = nb::ndarray<nb::numpy, float, nb::ndim<2>, nb::c_contig>;

constexpr const char* kCodeNames[] = {"OK",      "FILE",     "PLAN",         "TARGET",      "MEMORY",
                                      "OPTION",  "STATE",    "PROMPT_EMPTY", "PROMPT_LONG", "TOKENS_LONG",
                                      "TOKEN",   "SAMPLING", "BUSY",         "CAPACITY",    "HANDLE",
                                      "THREADS", "POOL",     "SELFTEST"};

nb::handle error_class;  // lives as long as the module

[[noreturn]] void raise(const ingot_error& error) {
  // A path in the text may have been cut inside a character.
  nb::object text = nb::steal(
      PyUnicode_DecodeUTF8(error.text, static_cast<Py_ssize_t>(std::strlen(error.text)), "replace"));
  nb::object raised = error_class(text);
  raised.attr("code") = static_cast<int>(error.code);
  raised.attr("name") = kCodeNames[error.code];
  raised.attr("reason") = error.reason;
  raised.attr("limit") = error.limit;
  raised.attr("actual") = error.actual;
  raised.attr("text") = text;
  PyErr_SetObject(error_class.ptr(), raised.ptr());
  throw nb::python_error();
}

void check(ingot_code code, const ingot_error& error) {
  if (code != INGOT_OK) raise(error);
}

struct PlanClose {
  void operator()(ingot_plan* plan) const { ingot_plan_close(plan); }
};
struct EngineClose {
  void operator()(ingot_engine* engine) const { ingot_close(engine); }
};

ingot_error closed_error() {
  ingot_error error = {};
  error.code = INGOT_ERROR_STATE;
  std::strncpy(error.text, "the engine is closed: create another one", sizeof error.text - 1);
  return error;
}

const char* target_name(uint32_t target) {
  constexpr const char* kNames[] = {"cpu", "sm90a", "tensorrt"};
  return kNames[target - 1];  // verify allows no other
}

class Plan {
 public:
  explicit Plan(const std::string& path) {
    ingot_error error;
    ingot_plan* plan = nullptr;
    ingot_code code = INGOT_OK;
    {
      nb::gil_scoped_release release;
      code = ingot_plan_open(path.c_str(), &plan, &error);
    }
    check(code, error);
    plan_.reset(plan);
  }

  const ingot_plan* get() const { return plan_.get(); }

  nb::dict info() const {
    ingot_plan_info info;
    ingot_plan_get_info(plan_.get(), &info);
    std::string hash;
    for (const uint8_t byte : info.hash) {
      hash += "0123456789abcdef"[byte >> 4];
      hash += "0123456789abcdef"[byte & 15];
    }
    nb::dict result;
    result["hash"] = hash;
    result["file_bytes"] = info.file_bytes;
    result["target"] = target_name(info.target);
    result["vocabulary"] = info.vocabulary;
    result["layers"] = info.layers;
    result["hidden"] = info.hidden;
    result["query_heads"] = info.query_heads;
    result["kv_heads"] = info.kv_heads;
    result["head_size"] = info.head_size;
    result["context"] = info.context;
    result["rows_max"] = info.rows_max;
    result["head_rows_max"] = info.head_rows_max;
    result["requests_max"] = info.requests_max;
    result["requests_default"] = info.requests_default;
    result["default_max_tokens"] = info.default_max_tokens;
    result["kv_tokens_max"] = info.kv_tokens_max;
    result["kv_tokens_default"] = info.kv_tokens_default;
    result["bos_token"] = info.bos_token == INGOT_NONE ? nb::none() : nb::object(nb::int_(info.bos_token));
    nb::list eos;
    for (uint32_t i = 0; i < info.eos_count; ++i) eos.append(info.eos_tokens[i]);
    result["eos_tokens"] = eos;
    result["weight_bytes"] = info.weight_bytes;
    return result;
  }

  nb::object text(const std::string& section) const {
    uint64_t bytes = 0;
    const char* content = ingot_plan_text(plan_.get(), section.c_str(), &bytes);
    if (content == nullptr) return nb::none();
    return nb::str(content, bytes);
  }

  nb::list regions(uint64_t kv_tokens, uint32_t requests) const {
    ingot_options options = {};
    options.kv_tokens = kv_tokens;
    options.requests = requests;
    ingot_region regions[INGOT_REGION_COUNT];
    ingot_error error;
    check(ingot_regions(plan_.get(), &options, regions, nullptr, &error), error);
    nb::list result;
    for (const ingot_region& region : regions) {
      nb::dict entry;
      entry["name"] = region.name;
      entry["bytes"] = region.bytes;
      entry["bytes_fixed"] = region.bytes_fixed;
      entry["bytes_per_granule"] = region.bytes_per_granule;
      entry["bytes_per_request"] = region.bytes_per_request;
      result.append(entry);
    }
    return result;
  }

 private:
  std::unique_ptr<ingot_plan, PlanClose> plan_;
};

struct Event {
  ingot_event record;

  nb::object token() const {
    return record.finish == INGOT_FINISH_CANCELLED ? nb::none() : nb::object(nb::int_(record.token));
  }
  nb::object finish() const {
    constexpr const char* kNames[] = {nullptr, "stop", "length", "cancelled"};
    return record.finish == INGOT_FINISH_NONE ? nb::none() : nb::object(nb::str(kNames[record.finish]));
  }
  nb::object logprob() const { return has_logprob ? nb::object(nb::float_(record.logprob)) : nb::none(); }
  std::vector<std::pair<uint32_t, float>> top() const {
    std::vector<std::pair<uint32_t, float>> result;
    for (uint32_t i = 0; i < record.top_count; ++i)
      result.emplace_back(record.top_tokens[i], record.top_logprobs[i]);
    return result;
  }
  bool has_logprob = false;
};

// What `submit` takes beside the tokens, as ingot_sampling; counts over a limit are left for the runtime to
// refuse.
ingot_sampling sampling_of(const std::vector<uint32_t>& stop_tokens, const nb::object& logit_bias) {
  ingot_sampling sampling = ingot_sampling_default();
  sampling.stop_count = static_cast<uint32_t>(stop_tokens.size());
  const size_t stops = std::min<size_t>(stop_tokens.size(), INGOT_STOP_TOKENS_MAX);
  std::copy_n(stop_tokens.begin(), stops, sampling.stop_tokens);
  if (logit_bias.is_none()) return sampling;
  for (const nb::handle item : logit_bias.attr("items")()) {
    const auto pair = nb::cast<std::pair<uint32_t, float>>(item);
    const uint32_t i = sampling.bias_count++;
    if (i >= INGOT_LOGIT_BIAS_MAX) continue;
    sampling.bias_tokens[i] = pair.first;
    sampling.bias_values[i] = pair.second;
  }
  return sampling;
}

class Engine {
 public:
  Engine(const Plan& plan, uint64_t kv_tokens, uint32_t requests, uint32_t threads, const std::string& isa,
         uint32_t step_rows, bool lock_memory) {
    ingot_options options = {};
    options.kv_tokens = kv_tokens;
    options.requests = requests;
    options.threads = threads;
    options.step_rows = step_rows;
    options.lock_memory = lock_memory ? 1 : 0;
    if (isa == "scalar") {
      options.isa = INGOT_ISA_SCALAR;
    } else if (isa == "avx2") {
      options.isa = INGOT_ISA_AVX2;
    } else if (isa != "auto") {
      throw nb::value_error("isa must be \"auto\", \"scalar\" or \"avx2\"");
    }
    ingot_plan_get_info(plan.get(), &info_);
    ingot_error error;
    ingot_engine* engine = nullptr;
    ingot_code code = INGOT_OK;
    {
      nb::gil_scoped_release release;
      code = ingot_create(plan.get(), &options, &engine, &error);
    }
    check(code, error);
    engine_.reset(engine);
  }

  // Runs `call` with the GIL released and the engine locked; raises what it reports.
  template <typename Call>
  void locked(Call&& call) {
    ingot_error error = {};
    ingot_code code = INGOT_OK;
    {
      nb::gil_scoped_release release;
      const std::lock_guard lock(mutex_);
      if (engine_ == nullptr) {
        error = closed_error();
        code = error.code;
      } else {
        code = call(engine_.get(), &error);
      }
    }
    check(code, error);
  }

  void seal() {
    locked([](ingot_engine* engine, ingot_error* error) { return ingot_seal(engine, error); });
  }

  uint64_t submit(const Tokens& tokens, std::optional<uint32_t> max_tokens, uint32_t min_tokens,
                  uint64_t seed, float temperature, uint32_t top_k, float top_p, float min_p,
                  float repetition_penalty, float presence_penalty, float frequency_penalty, bool logprobs,
                  uint32_t top_logprobs, bool ignore_eos, const std::vector<uint32_t>& stop_tokens,
                  const nb::object& logit_bias) {
    ingot_sampling sampling = sampling_of(stop_tokens, logit_bias);
    sampling.seed = seed;
    sampling.temperature = temperature;
    sampling.top_k = top_k;
    sampling.top_p = top_p;
    sampling.min_p = min_p;
    sampling.repetition_penalty = repetition_penalty;
    sampling.presence_penalty = presence_penalty;
    sampling.frequency_penalty = frequency_penalty;
    sampling.want_logprob = logprobs ? 1 : 0;
    sampling.top_logprobs = top_logprobs;
    sampling.min_tokens = min_tokens;
    sampling.ignore_eos = ignore_eos ? 1 : 0;
    if (max_tokens.has_value()) {
      // INGOT_NONE means "not given" to the C API; as a number it is over every context.
      sampling.max_tokens = std::min(*max_tokens, INGOT_NONE - 1);
    }
    const uint32_t count = static_cast<uint32_t>(std::min<size_t>(tokens.size(), UINT32_MAX));
    ingot_handle handle = 0;
    locked([&](ingot_engine* engine, ingot_error* error) {
      const ingot_code code = ingot_submit(engine, tokens.data(), count, &sampling, &handle, error);
      if (code == INGOT_OK) with_logprob_[handle & UINT32_MAX] = logprobs;
      return code;
    });
    return handle;
  }

  uint32_t step() {
    uint32_t rows = 0;
    locked([&](ingot_engine* engine, ingot_error* error) { return ingot_step(engine, &rows, error); });
    return rows;
  }

  std::vector<Event> poll(uint64_t handle, uint32_t capacity) {
    if (capacity < 1 || capacity > kPollMax) throw nb::value_error("capacity must be 1 to 64");
    ingot_event records[kPollMax];
    uint32_t count = 0;
    bool with_logprob = false;
    locked([&](ingot_engine* engine, ingot_error* error) {
      const ingot_code code = ingot_poll(engine, handle, records, capacity, &count, error);
      if (code == INGOT_OK) with_logprob = with_logprob_[handle & UINT32_MAX];
      return code;
    });
    std::vector<Event> events;
    for (uint32_t i = 0; i < count; ++i) {
      events.push_back({records[i], with_logprob && records[i].finish != INGOT_FINISH_CANCELLED});
    }
    return events;
  }

  void cancel(uint64_t handle) {
    locked([&](ingot_engine* engine, ingot_error* error) { return ingot_cancel(engine, handle, error); });
  }

  Logits score(const Tokens& tokens, uint32_t chunk) {
    // One more token than the context is as wrong as any number above it, and its logits still fit.
    const size_t count = std::min<size_t>(tokens.size(), size_t{info_.context} + 1);
    auto logits = std::unique_ptr<float[]>(new float[count * info_.vocabulary + 1]);
    locked([&](ingot_engine* engine, ingot_error* error) {
      return ingot_score(engine, tokens.data(), static_cast<uint32_t>(count), chunk, logits.get(), error);
    });
    float* data = logits.release();
    nb::capsule owner(data, [](void* memory) noexcept { delete[] static_cast<float*>(memory); });
    return Logits(data, {count, info_.vocabulary}, owner);
  }

  nb::dict stats() {
    ingot_stats stats;
    locked([&](ingot_engine* engine, ingot_error*) {
      ingot_get_stats(engine, &stats);
      return INGOT_OK;
    });
    nb::dict result;
    result["steps"] = stats.steps;
    result["rows"] = stats.rows;
    result["tokens_generated"] = stats.tokens_generated;
    result["requests_finished"] = stats.requests_finished;
    result["requests_running"] = stats.requests_running;
    result["requests"] = stats.requests;
    result["granules_free"] = stats.granules_free;
    result["granules"] = stats.granules;
    result["bytes_reserved"] = stats.bytes_reserved;
    result["allocations_after_seal"] = stats.allocations_after_seal;
    result["threads"] = stats.threads;
    result["isa"] = stats.isa == INGOT_ISA_AVX2 ? "avx2" : "scalar";
    return result;
  }

  void close() {
    nb::gil_scoped_release release;
    const std::lock_guard lock(mutex_);
    engine_.reset();
  }

 private:
  static constexpr uint32_t kPollMax = 64;

  std::mutex mutex_;
  std::unique_ptr<ingot_engine, EngineClose> engine_;
  ingot_plan_info info_ = {};
  bool with_logprob_[4096] = {};  // by slot; the plan's limit on requests
};

std::pair<uint32_t, uint64_t> verify(const nb::bytes& data) {
  uint64_t index = 0;
  uint32_t reason = 0;
  {
    nb::gil_scoped_release release;
    reason = ingot_verify(data.c_str(), data.size(), &index);
  }
  return {reason, index};
}

void bind_engine(nb::module_& module) {
  nb::class_<Engine>(module, "Engine")
      .def(nb::init<const Plan&, uint64_t, uint32_t, uint32_t, const std::string&, uint32_t, bool>(),
           "plan"_a, nb::kw_only(), "kv_tokens"_a = 0, "requests"_a = 0, "threads"_a = 0, "isa"_a = "auto",
           "step_rows"_a = 0, "lock_memory"_a = false)
      .def("seal", &Engine::seal)
      .def("submit", &Engine::submit, "tokens"_a, nb::kw_only(), "max_tokens"_a = nb::none(),
           "min_tokens"_a = 0, "seed"_a = 0, "temperature"_a = 0.0f, "top_k"_a = 0, "top_p"_a = 1.0f,
           "min_p"_a = 0.0f, "repetition_penalty"_a = 1.0f, "presence_penalty"_a = 0.0f,
           "frequency_penalty"_a = 0.0f, "logprobs"_a = false, "top_logprobs"_a = 0, "ignore_eos"_a = false,
           "stop_tokens"_a = std::vector<uint32_t>(), "logit_bias"_a = nb::none())
      .def("step", &Engine::step)
      .def("poll", &Engine::poll, "handle"_a, "capacity"_a = 64)
      .def("cancel", &Engine::cancel, "handle"_a)
      .def("score", &Engine::score, "tokens"_a, "chunk"_a = 0)
      .def_prop_ro("stats", &Engine::stats)
      .def("close", &Engine::close);
}

}  // namespace

NB_MODULE(_ingot, module) {
  error_class = nb::handle(PyErr_NewException("ingot.runtime._ingot.IngotError", PyExc_Exception, nullptr));
  if (!error_class.is_valid()) throw nb::python_error();
  module.attr("IngotError") = error_class;
  nb::class_<Event>(module, "Event")
      .def_prop_ro("token", &Event::token)
      .def_prop_ro("position", [](const Event& event) { return event.record.position; })
      .def_prop_ro("finish", &Event::finish)
      .def_prop_ro("logprob", &Event::logprob)
      .def_prop_ro("top", &Event::top);
  nb::class_<Plan>(module, "Plan")
      .def(nb::init<const std::string&>(), "path"_a)
      .def_prop_ro("info", &Plan::info)
      .def("text", &Plan::text, "section"_a)
      .def("regions", &Plan::regions, nb::kw_only(), "kv_tokens"_a = 0, "requests"_a = 0);
  bind_engine(module);
  module.def("verify", &verify, "data"_a);
  module.def("reason_text", [](uint32_t reason) { return ingot_reason_text(reason); }, "reason"_a);
}

#include "sampler.h"

#include <bit>
#include <cfloat>
#include <limits>

#include "error.h"
#include "rng.h"

namespace ingot::core {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();
constexpr uint32_t kLanes = 8;

// NaN: -inf; +inf: the largest finite float; -0: +0.
inline float clean(float x) {
  const float finite = x < FLT_MAX ? x : FLT_MAX;
  return (x == x ? finite : kLowest) + 0.0f;
}

inline float exp_core(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float clamped = x < -87.0f ? -87.0f : x;
  const float n = (clamped * 1.44269504088896341f + kRound) - kRound;
  float r = clamped - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float y = (p * (r * r) + r) + 1.0f;
  const int32_t bits = std::bit_cast<int32_t>(y) + static_cast<int32_t>(n) * (1 << 23);
  return x < -87.0f ? 0.0f : std::bit_cast<float>(bits);
}

// Largest of clean(x[i]).
float largest(std::span<const float> x) {
  float lanes[kLanes];
  for (float& lane : lanes) lane = kLowest;
  size_t i = 0;
  for (; i + kLanes <= x.size(); i += kLanes) {
    for (uint32_t j = 0; j < kLanes; ++j) lanes[j] = x[i + j] > lanes[j] ? x[i + j] : lanes[j];
  }
  float most = kLowest;
  for (; i < x.size(); ++i) most = x[i] > most ? x[i] : most;
  for (const float lane : lanes) most = lane > most ? lane : most;
  return clean(most);
}

// The lowest id with the largest value; 0 when no value is finite.
uint32_t argmax(std::span<const float> x) {
  const float most = largest(x);
  if (most == kLowest) return 0;
  for (uint32_t i = 0; i < x.size(); ++i) {
    if (x[i] >= most) return i;  // +inf was taken for the largest finite float
  }
  return 0;
}

// log(sum exp(x - most)), binary64.
double log_sum(std::span<const float> x, float most) {
  double lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= x.size(); i += kLanes) {
    for (uint32_t j = 0; j < kLanes; ++j) lanes[j] += static_cast<double>(exp_core(clean(x[i + j]) - most));
  }
  for (uint32_t j = 0; i < x.size(); ++i, ++j) lanes[j] += static_cast<double>(exp_core(clean(x[i]) - most));
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return log_unfused(sum);
}

struct Logprobs {
  float most;
  double log_total;

  float of(float x) const {
    const float value = clean(x);
    if (value == kLowest) return kLowest;
    return static_cast<float>((static_cast<double>(value) - static_cast<double>(most)) - log_total);
  }
};

// The `count` largest of x in descending order, ties by id, into tokens[1..] and logprobs[1..].
void top_logprobs(std::span<const float> x, uint32_t count, const Logprobs& of, uint32_t* tokens,
                  float* logprobs) {
  float values[plan::kTopLogprobsMax + 1];
  uint32_t used = 0;
  for (uint32_t i = 0; i < x.size(); ++i) {
    const float value = clean(x[i]);
    if (used == count && !(value > values[used])) continue;
    uint32_t at = used < count ? ++used : used;
    for (; at > 1 && value > values[at - 1]; --at) {
      values[at] = values[at - 1];
      tokens[at] = tokens[at - 1];
    }
    values[at] = value;
    tokens[at] = i;
  }
  for (uint32_t i = 1; i <= used; ++i) logprobs[i] = of.of(values[i]);
}

bool penalised(const plan::SamplingRecord& s) {
  return s.repetition_penalty != 1.0f || s.presence_penalty != 0.0f || s.frequency_penalty != 0.0f;
}

void penalise(const SampleRow& row) {
  const plan::SamplingRecord& s = *row.sampling;
  for (size_t i = 0; i < row.logits.size(); ++i) {
    const uint16_t count = row.token_counts[i];
    if (count == 0) continue;
    float x = row.values[i];
    x = clean(x > 0.0f ? x / s.repetition_penalty : x * s.repetition_penalty);
    if (const auto generated = static_cast<uint16_t>(count & kCountGenerated); generated != 0) {
      x -= s.frequency_penalty * static_cast<float>(generated);
      x -= s.presence_penalty;
    }
    row.values[i] = clean(x);
  }
}

// True when steps 2 to 4 change nothing.
bool unprocessed(const SampleRow& row) {
  const plan::SamplingRecord& s = *row.sampling;
  return s.bias_count == 0 && !penalised(s) && row.position - s.prompt_count >= s.min_tokens;
}

// Steps 2 to 4: values from logits.
void process(const SampleRow& row) {
  const plan::SamplingRecord& s = *row.sampling;
  for (size_t i = 0; i < row.logits.size(); ++i) row.values[i] = clean(row.logits[i]);
  for (uint32_t i = 0; i < s.bias_count; ++i) {
    float& value = row.values[s.bias_tokens[i]];
    value = clean(value + s.bias_values[i]);
  }
  if (penalised(s)) penalise(row);
  if (row.position - s.prompt_count < s.min_tokens) {
    for (uint32_t i = 0; i < s.stop_count; ++i) row.values[s.stop_tokens[i]] = kLowest;
    for (uint32_t i = 0; i < s.eos_count; ++i) row.values[s.eos_tokens[i]] = kLowest;
  }
}

// A key that orders like the float it is made of.
inline uint32_t order_key(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return bits ^ ((bits >> 31) != 0 ? 0xFFFFFFFFu : 0x80000000u);
}

// What is kept: all keys above `key`, and of those equal to it the `equal` with the lowest ids.
struct Cut {
  uint32_t key = 0;
  uint64_t equal = UINT64_MAX;
};

// The smallest set of largest values whose masses add up to at least `target`, found digit by digit of the
// key (radix selection: three passes, no sorting, no memory). `weights` are the masses; nullptr: one each.
Cut select(std::span<const float> values, const float* weights, double target) {
  constexpr uint32_t kShifts[] = {21, 10, 0};
  constexpr uint32_t kWidths[] = {11, 11, 10};
  double histogram[2048];
  Cut cut;
  double above = 0;  // mass of the keys that are larger than every key with the digits found so far
  for (uint32_t digit = 0; digit < 3; ++digit) {
    const uint32_t buckets = 1u << kWidths[digit];
    for (uint32_t b = 0; b < buckets; ++b) histogram[b] = 0;
    const uint64_t prefix = uint64_t{cut.key} >> kShifts[digit] >> kWidths[digit];
    for (size_t i = 0; i < values.size(); ++i) {
      const uint32_t key = order_key(values[i]);
      if (uint64_t{key} >> kShifts[digit] >> kWidths[digit] != prefix) continue;
      histogram[(key >> kShifts[digit]) & (buckets - 1)] +=
          weights == nullptr ? 1.0 : static_cast<double>(weights[i]);
    }
    uint32_t chosen = 0;
    double before = above;  // mass above the chosen bucket
    for (uint32_t b = buckets; b-- > 0;) {
      if (histogram[b] == 0) continue;
      chosen = b;
      before = above;
      above += histogram[b];
      if (above >= target) break;
    }
    // A digit's sums may round below the target that the digit before had reached: then it is the last
    // bucket.
    above = before;
    cut.key |= chosen << kShifts[digit];
  }
  cut.equal = 0;
  for (size_t i = 0; i < values.size() && above < target; ++i) {
    if (order_key(values[i]) != cut.key) continue;
    above += weights == nullptr ? 1.0 : static_cast<double>(weights[i]);
    ++cut.equal;
  }
  return cut;
}

// The tokens still in the running, in ascending id. While that is all of them, ids is null; after top_k at
// most half of them are left: they move to the front of `values`, and their ids lie, bit for bit, in the
// unused half of `weights`.
struct Candidates {
  std::span<float> values;
  float* weights;
  float* ids = nullptr;

  uint32_t id(uint32_t i) const { return ids == nullptr ? i : std::bit_cast<uint32_t>(ids[i]); }
};

// Whether the next value in ascending id is kept; counts those equal to the cut.
inline bool kept(const Cut& cut, float value, uint64_t* equal) {
  const uint32_t key = order_key(value);
  return key > cut.key || (key == cut.key && (*equal)++ < cut.equal);
}

void keep_top_k(uint32_t k, Candidates* all) {
  const Cut cut = select(all->values, nullptr, k);
  const size_t half = all->values.size() / 2;
  uint64_t equal = 0;
  uint32_t count = 0;
  if (k > half) {
    for (float& value : all->values) value = kept(cut, value, &equal) ? value : kLowest;
    return;
  }
  all->ids = all->weights + half;
  for (uint32_t i = 0; i < all->values.size(); ++i) {
    if (!kept(cut, all->values[i], &equal)) continue;
    all->ids[count] = std::bit_cast<float>(i);
    all->values[count++] = all->values[i];
  }
  all->values = all->values.first(count);
}

double sum_of(const Candidates& of) {
  double sum = 0;
  for (size_t i = 0; i < of.values.size(); ++i) sum += static_cast<double>(of.weights[i]);
  return sum;
}

// Steps 5 to 9 for a temperature above 0.
uint32_t draw(const SampleRow& row) {
  const plan::SamplingRecord& s = *row.sampling;
  Candidates all{{row.values, row.logits.size()}, row.weights};
  const float most = largest(all.values);
  if (most == kLowest) return 0;
  if (s.top_k != 0 && s.top_k < all.values.size()) keep_top_k(s.top_k, &all);
  const float temperature = s.temperature;
  const size_t count = all.values.size();
  float* weights = all.weights;
  for (size_t i = 0; i < count; ++i) weights[i] = exp_core((all.values[i] - most) / temperature);
  if (s.top_p < 1.0f) {
    const Cut cut = select(all.values, weights, static_cast<double>(s.top_p) * sum_of(all));
    uint64_t equal = 0;
    for (size_t i = 0; i < count; ++i) weights[i] = kept(cut, all.values[i], &equal) ? weights[i] : 0.0f;
  }
  if (s.min_p > 0.0f) {
    for (size_t i = 0; i < count; ++i) weights[i] = weights[i] < s.min_p ? 0.0f : weights[i];
  }
  const double target = uniform(s.seed, row.position) * sum_of(all);
  double sum = 0;
  uint32_t last = 0;
  for (uint32_t i = 0; i < count; ++i) {
    if (weights[i] == 0.0f) continue;
    sum += static_cast<double>(weights[i]);
    last = i;
    if (sum > target) break;
  }
  return all.id(last);
}

uint32_t items(const cpu::KernelArgs& args) { return args.rows; }

void run(const cpu::KernelArgs& args, uint32_t begin, uint32_t end) {
  namespace at = plan::operand::sample;
  const uint32_t vocabulary = args.operand[at::kLogits].dims[1];
  const auto* logits = reinterpret_cast<const float*>(args.operand[at::kLogits].data);
  const auto* requests = reinterpret_cast<const uint32_t*>(args.operand[at::kRequests].data);
  const auto* positions = reinterpret_cast<const uint32_t*>(args.operand[at::kPositions].data);
  auto* scratch = reinterpret_cast<float*>(args.operand[at::kScratch].data);
  auto* out_tokens = reinterpret_cast<uint32_t*>(args.operand[at::kOutTokens].data);
  auto* top_tokens = reinterpret_cast<uint32_t*>(args.operand[at::kTopTokens].data);
  auto* top_logprobs_out = reinterpret_cast<float*>(args.operand[at::kTopLogprobs].data);
  constexpr uint64_t kTop = 1 + plan::kTopLogprobsMax;
  for (uint64_t r = begin; r < end; ++r) {
    const uint64_t request = requests[r];
    if (request == plan::kNoneIndex) continue;
    INGOT_ASSERT(request < args.requests, "sample", "a head row names a request slot");
    float* values = scratch + r * 2 * vocabulary;
    const SampleRow row{
        {logits + r * vocabulary, vocabulary},
        reinterpret_cast<const uint16_t*>(args.operand[at::kTokenCounts].data +
                                          request * args.operand[at::kTokenCounts].stride),
        reinterpret_cast<const plan::SamplingRecord*>(args.operand[at::kSampling].data +
                                                      request * args.operand[at::kSampling].stride),
        positions[r],
        values,
        values + vocabulary,
    };
    out_tokens[r] = sample_row(row, top_tokens + r * kTop, top_logprobs_out + r * kTop);
  }
}

constexpr cpu::KernelEntry kSample{plan::Kernel::kSample, 1, {{&items, &run}, {nullptr, nullptr}}};

}  // namespace

float exp_unfused(float x) { return exp_core(x); }

double log_unfused(double x) {
  const auto bits = std::bit_cast<uint64_t>(x);
  auto exponent = static_cast<int32_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0x000FFFFFFFFFFFFFu) | 0x3FF0000000000000u);  // in [1, 2)
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double f = m - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s;
  const double w = z * z;
  const double even =
      w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
  const double odd =
      z * (6.666666666666735130e-01 +
           w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
  const double half = 0.5 * f * f;
  const double k = exponent;
  return k * 6.93147180369123816490e-01 -
         ((half - (s * (half + (even + odd)) + k * 1.90821492927058770002e-10)) - f);
}

uint32_t sample_row(const SampleRow& row, uint32_t* top_tokens, float* top_logprobs_out) {
  const plan::SamplingRecord& s = *row.sampling;
  uint32_t token = 0;
  if (s.temperature == 0.0f && unprocessed(row)) {
    token = argmax(row.logits);
  } else {
    process(row);
    token = s.temperature == 0.0f ? argmax({row.values, row.logits.size()}) : draw(row);
  }
  if (s.want_logprob == 0 && s.top_logprobs == 0) return token;
  for (uint32_t i = 0; i <= plan::kTopLogprobsMax; ++i) {
    top_tokens[i] = 0;
    top_logprobs_out[i] = 0.0f;
  }
  const float most = largest(row.logits);
  const Logprobs of{most, most == kLowest ? 0.0 : log_sum(row.logits, most)};
  top_tokens[0] = token;
  top_logprobs_out[0] = of.of(row.logits[token]);
  if (s.top_logprobs != 0) top_logprobs(row.logits, s.top_logprobs, of, top_tokens, top_logprobs_out);
  return token;
}

const cpu::KernelEntry& sample_kernel() { return kSample; }

}  // namespace ingot::core

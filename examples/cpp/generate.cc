// Generates tokens from a plan: generate PLAN MAX_TOKENS TEMPERATURE SEED TOKEN...
// Prints the memory that the engine reserves, then the generated token ids.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "ingot.hpp"

int main(int argc, char** argv) {
  if (argc < 6) {
    std::fprintf(stderr, "usage: %s PLAN MAX_TOKENS TEMPERATURE SEED TOKEN...\n", argv[0]);
    return 2;
  }
  const auto refused = [](const ingot_error& error) {
    std::fprintf(stderr, "%s\n", error.text);
    return 1;
  };
  auto plan = ingot::Plan::open(argv[1]);
  if (!plan) return refused(plan.error());
  auto regions = plan->regions();
  if (!regions) return refused(regions.error());
  for (const ingot_region& region : *regions) {
    std::fprintf(stderr, "%-8s %12llu bytes\n", region.name, static_cast<unsigned long long>(region.bytes));
  }
  auto engine = ingot::Engine::open(*plan);
  if (!engine) return refused(engine.error());

  ingot::Sampling sampling;
  sampling.max_tokens = static_cast<uint32_t>(std::strtoul(argv[2], nullptr, 10));
  sampling.temperature = std::strtof(argv[3], nullptr);
  sampling.seed = std::strtoull(argv[4], nullptr, 10);
  std::vector<uint32_t> prompt;
  for (int i = 5; i < argc; ++i) prompt.push_back(static_cast<uint32_t>(std::strtoul(argv[i], nullptr, 10)));
  auto finish =
      engine->generate(prompt, sampling, [](const ingot_event& event) { std::printf("%u\n", event.token); });
  return finish ? 0 : refused(finish.error());
}

// rope_table: cosines and sines of a row's angles, in binary64 by our own reduction and polynomials, so that
// no libm decides a bit. Compiled once per ISA; std::fma is exact everywhere, so all give the same bits.
#pragma once

#include <cmath>
#include <cstdint>

#include "../kernel.h"

namespace ingot::cpu {
namespace {

struct SinCos {
  double sine, cosine;
};

// |angle| up to 2^24: within 1e-15. pi/2 is the sum of three binary64; each fma is exact to half a unit of
// what is left, so nothing is lost where the angle is near a multiple of pi/2. Polynomials: fdlibm's k_sin.c
// and k_cos.c (minimax on |r| <= pi/4).
inline SinCos sincos_(double angle) {
  const double n = std::rint(angle * 0x1.45f306dc9c883p-1);  // 2 / pi
  double r = std::fma(n, -0x1.921fb54442d18p0, angle);
  r = std::fma(n, -0x1.1a62633145c07p-54, r);
  r = std::fma(n, 0x1.f1976b7ed8fbcp-110, r);
  const double z = r * r;
  double s = 1.58969099521155010221e-10;
  s = std::fma(s, z, -2.50507602534068634195e-08);
  s = std::fma(s, z, 2.75573137070700676789e-06);
  s = std::fma(s, z, -1.98412698298579493134e-04);
  s = std::fma(s, z, 8.33333333332248946124e-03);
  s = std::fma(s, z, -1.66666666666666324348e-01);
  const double sine = std::fma(r * z, s, r);
  double c = -1.13596475577881948265e-11;
  c = std::fma(c, z, 2.08757232129817482790e-09);
  c = std::fma(c, z, -2.75573143513906633035e-07);
  c = std::fma(c, z, 2.48015872894767294178e-05);
  c = std::fma(c, z, -1.38888888888741095749e-03);
  c = std::fma(c, z, 4.16666666666666019037e-02);
  const double cosine = std::fma(z * z, c, std::fma(z, -0.5, 1.0));
  const auto quarter = static_cast<uint64_t>(static_cast<int64_t>(n)) & 3;
  const double a = quarter & 1 ? cosine : sine;  // sine of the angle, but for its sign
  const double b = quarter & 1 ? sine : cosine;
  return {quarter & 2 ? -a : a, (quarter + 1) & 2 ? -b : b};
}

inline void rope_table_rows(const KernelArgs& args, uint32_t begin, uint32_t end) {
  namespace at = plan::operand::rope_table;
  const auto* positions = reinterpret_cast<const uint32_t*>(args.operand[at::kPositions].data);
  const auto* frequency = reinterpret_cast<const float*>(args.operand[at::kInverseFrequency].data);
  const uint32_t pairs = args.operand[at::kInverseFrequency].dims[0];
  const double factor = static_cast<double>(args.f[0]);
  for (uint32_t row = begin; row < end; ++row) {
    float* out = reinterpret_cast<float*>(args.operand[at::kOut].data) + size_t{row} * 2 * pairs;
    const float position = static_cast<float>(positions[row]);
    for (uint32_t p = 0; p < pairs; ++p) {
      const SinCos at_angle = sincos_(static_cast<double>(position * frequency[p]));
      out[p] = static_cast<float>(at_angle.cosine * factor);
      out[pairs + p] = static_cast<float>(at_angle.sine * factor);
    }
  }
}

}  // namespace
}  // namespace ingot::cpu

#include "kernels/optimizer/optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/optimizer/canonical.hpp"
#include "kernels/optimizer/optimizer_call.hpp"

namespace offstage::kernels::ref {
namespace {

constexpr auto block = static_cast<std::size_t>(scale_block);

struct Element {
  float p, m, v;
};

float load_number(std::byte const* numbers, DType type, std::size_t i) {
  switch (type) {
    case DType::bf16:
      return load(reinterpret_cast<bfloat16 const*>(numbers)[i]);
    case DType::fp16:
      return load(reinterpret_cast<float16 const*>(numbers)[i]);
    case DType::fp32:
      break;
  }
  return reinterpret_cast<float const*>(numbers)[i];
}

void store_number(std::byte* numbers, DType type, std::size_t i, float value) {
  switch (type) {
    case DType::bf16:
      reinterpret_cast<bfloat16*>(numbers)[i] = upper_half(value);
      return;
    case DType::fp16:
      reinterpret_cast<float16*>(numbers)[i] = to_fp16(value);
      return;
    case DType::fp32:
      reinterpret_cast<float*>(numbers)[i] = value;
      return;
  }
}

Element load_element(OptimizerCall const& c, std::size_t i) {
  Element e{};
  if (c.split) {
    e.p = join(reinterpret_cast<bfloat16 const*>(c.working_copy)[i],
               reinterpret_cast<std::uint16_t const*>(c.parameter)[i]);
  } else {
    e.p = reinterpret_cast<float const*>(c.parameter)[i];
  }
  auto const moment = [&](std::byte const* values, auto const& in_8_bits) {
    switch (c.moments) {
      case Moments::bf16:
        return load(reinterpret_cast<bfloat16 const*>(values)[i]);
      case Moments::int8:
        return in_8_bits(reinterpret_cast<std::uint8_t const*>(values)[i]);
      case Moments::fp32:
        break;
    }
    return reinterpret_cast<float const*>(values)[i];
  };
  if (c.momentum != nullptr) {
    e.m = moment(c.momentum,
                 [&](std::uint8_t code) { return momentum_of(code, c.momentum_scale[i / block]); });
  }
  if (c.variance != nullptr) {
    e.v = moment(c.variance,
                 [&](std::uint8_t code) { return variance_of(code, c.variance_scale[i / block]); });
  }
  return e;
}

/// The arithmetic that every other kernel repeats.
Element stepped(Rule rule, Element e, float gradient, Coefficients const& c) {
  auto const [p, m, v] = e;
  float const scaled = gradient * c.gradient_scale;
  float const g = std::fma(c.l2, p, scaled);
  switch (rule) {
    case Rule::adamw: {
      e.m = kept(std::fma(c.beta1, m, c.one_minus_beta1 * scaled));
      e.v = kept(std::fma(c.beta2, v, (c.one_minus_beta2 * scaled) * scaled));
      float const d = std::fma(std::sqrt(e.v), c.inverse_sqrt_correction2, c.epsilon);
      e.p = std::fma(-c.step_size, e.m / d, p * c.decay);
      break;
    }
    case Rule::adam: {
      e.m = kept(std::fma(c.beta1, m, c.one_minus_beta1 * g));
      e.v = kept(std::fma(c.beta2, v, (c.one_minus_beta2 * g) * g));
      float const d = std::fma(std::sqrt(e.v), c.inverse_sqrt_correction2, c.epsilon);
      e.p = std::fma(-c.step_size, e.m / d, p);
      break;
    }
    case Rule::adagrad:
      e.v = kept(std::fma(g, g, v));
      e.p = std::fma(-c.step_size, g / (std::sqrt(e.v) + c.epsilon), p);
      break;
    case Rule::rmsprop:
      e.v = kept(std::fma(c.beta2, v, (c.one_minus_beta2 * g) * g));
      e.p = std::fma(-c.step_size, g / (std::sqrt(e.v) + c.epsilon), p);
      break;
    case Rule::rmsprop_momentum:
      e.v = kept(std::fma(c.beta2, v, (c.one_minus_beta2 * g) * g));
      e.m = kept(std::fma(c.momentum, m, g / (std::sqrt(e.v) + c.epsilon)));
      e.p = std::fma(-c.step_size, e.m, p);
      break;
    case Rule::sgd:
      e.p = std::fma(-c.step_size, g, p);
      break;
    case Rule::sgd_momentum:
      e.m = kept(std::fma(c.momentum, m, g));
      e.p = std::fma(-c.step_size, e.m, p);
      break;
    case Rule::lion: {
      float const towards = std::fma(c.beta1, m, c.one_minus_beta1 * scaled);
      // Zero and NaN are their own signs.
      float const sign = towards > 0.0F ? 1.0F : towards < 0.0F ? -1.0F : towards;
      e.p = std::fma(-c.step_size, sign, p * c.decay);
      e.m = kept(std::fma(c.beta2, m, c.one_minus_beta2 * scaled));
      break;
    }
  }
  return {canonical(e.p), canonical(e.m), canonical(e.v)};
}

void store_parameter(OptimizerCall const& c, std::size_t i, float p) {
  if (c.split) {
    reinterpret_cast<std::uint16_t*>(c.parameter)[i] = lower_half(p);
  } else {
    reinterpret_cast<float*>(c.parameter)[i] = p;
  }
  store_number(c.working_copy, c.working_copy_type, i, p);
}

BlockScale scale_of_block(std::vector<Element> const& elements, float Element::*moment,
                          CodeFormat format) {
  std::uint32_t largest = 0;
  for (Element const& e : elements) {
    largest = std::max(largest, bits_of_float(e.*moment) & 0x7FFFFFFFU);
  }
  return scale_of(largest, format);
}

/// The moments of elements [begin, begin + elements.size()), which are in one block.
void store_moments(OptimizerCall const& c, std::size_t begin,
                   std::vector<Element> const& elements) {
  BlockKey const key = key_of(c, begin / block);
  auto const of_m = scale_of_block(elements, &Element::m, momentum_codes);
  auto const of_v = scale_of_block(elements, &Element::v, variance_codes);
  for (std::size_t j = 0; j < elements.size(); ++j) {
    std::size_t const i = begin + j;
    std::uint32_t const random = random_word(key, static_cast<std::uint32_t>(j));
    auto const [p, m, v] = elements[j];
    auto const store_as = [&](std::byte* moments, float exact, std::uint16_t in_16_bits,
                              std::uint8_t in_8_bits) {
      if (moments == nullptr) {
        return;
      }
      switch (c.moments) {
        case Moments::fp32:
          reinterpret_cast<float*>(moments)[i] = exact;
          return;
        case Moments::bf16:
          reinterpret_cast<std::uint16_t*>(moments)[i] = in_16_bits;
          return;
        case Moments::int8:
          reinterpret_cast<std::uint8_t*>(moments)[i] = in_8_bits;
          return;
      }
    };
    // Codes beside a scale that is NaN are zero.
    store_as(c.momentum, m, round_momentum16(m, random),
             of_m.scale == of_m.scale ? round_momentum8(m, of_m.inverse, random) : std::uint8_t{0});
    store_as(c.variance, v, round_variance16(v, random),
             of_v.scale == of_v.scale ? round_variance8(v, of_v.inverse, random) : std::uint8_t{0});
  }
  if (c.momentum_scale != nullptr) {
    c.momentum_scale[begin / block] = of_m.scale;
  }
  if (c.variance_scale != nullptr) {
    c.variance_scale[begin / block] = of_v.scale;
  }
}

}  // namespace

void optimize(StateLayout const& layout, OptimizerPart const& part, OptimizerStep const& step) {
  OptimizerCall const c = call_of(layout, part, step);
  std::vector<Element> elements;
  for (std::size_t begin = 0; begin < c.count; begin += block) {
    elements.clear();
    for (std::size_t i = begin; i < std::min(begin + block, c.count); ++i) {
      elements.push_back(stepped(c.rule, load_element(c, i),
                                 load_number(c.gradient, c.gradient_type, i),
                                 i < c.decayed ? c.decayed_by : c.not_decayed));
      store_parameter(c, i, elements.back().p);
    }
    store_moments(c, begin, elements);
  }
}

}  // namespace offstage::kernels::ref

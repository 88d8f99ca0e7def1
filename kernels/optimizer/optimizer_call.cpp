#include "kernels/optimizer/optimizer_call.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/random.hpp"

namespace offstage::kernels {
namespace {

constexpr auto block = static_cast<std::size_t>(scale_block);

Rule rule_of(Optimizer optimizer, bool has_momentum) {
  switch (optimizer) {
    case Optimizer::adamw:
      return Rule::adamw;
    case Optimizer::adam:
      return Rule::adam;
    case Optimizer::adagrad:
      return Rule::adagrad;
    case Optimizer::rmsprop:
      return has_momentum ? Rule::rmsprop_momentum : Rule::rmsprop;
    case Optimizer::sgd:
      return has_momentum ? Rule::sgd_momentum : Rule::sgd;
    case Optimizer::lion:
      return Rule::lion;
  }
  throw PreconditionError{"optimizer: no such rule"};
}

Coefficients coefficients_of(OptimizerStep const& s, bool decays) {
  auto const t = static_cast<double>(s.step);
  bool const is_adam = s.optimizer == Optimizer::adamw || s.optimizer == Optimizer::adam;
  bool const is_decoupled = s.optimizer == Optimizer::adamw || s.optimizer == Optimizer::lion;
  double const lambda = decays ? s.weight_decay : 0.0;
  return {
      .gradient_scale = static_cast<float>(s.gradient_scale),
      .beta1 = static_cast<float>(s.beta1),
      .one_minus_beta1 = static_cast<float>(1.0 - s.beta1),
      .beta2 = static_cast<float>(s.beta2),
      .one_minus_beta2 = static_cast<float>(1.0 - s.beta2),
      .inverse_sqrt_correction2 = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(s.beta2, t))),
      .epsilon = static_cast<float>(s.epsilon),
      .step_size = static_cast<float>(is_adam ? s.learning_rate / (1.0 - std::pow(s.beta1, t))
                                              : s.learning_rate),
      .momentum = static_cast<float>(s.momentum),
      .decay = static_cast<float>(is_decoupled ? 1.0 - s.learning_rate * lambda : 1.0),
      .l2 = static_cast<float>(is_decoupled ? 0.0 : lambda)};
}

std::size_t bytes_of(Moments moments) {
  return moments == Moments::fp32 ? 4 : moments == Moments::bf16 ? 2 : 1;
}

template <class Numbers>
std::int64_t length_of(Numbers const& numbers) {
  return std::visit([](auto span) { return std::ssize(span); }, numbers);
}
DType type_of(std::size_t index) {
  constexpr DType types[] = {DType::fp32, DType::bf16, DType::fp16};  // as in the variants
  return types[index];
}

Moments moments_of(StateLayout const& layout) {
  if (layout.planes().size() == 1) {
    return Moments::fp32;
  }
  PlaneType const type = layout.planes()[1].type;
  return type == PlaneType::fp32   ? Moments::fp32
         : type == PlaneType::bf16 ? Moments::bf16
                                   : Moments::int8;
}

void require_fit(OptimizerPart const& part, Moments moments, bool split) {
  require(part.elements >= 0 && length_of(part.gradient) == part.elements &&
              length_of(part.working_copy) == part.elements,
          "optimizer: views differ in length");
  require(part.decayed >= 0 && part.decayed <= part.elements,
          "optimizer: more elements are decayed than there are");
  require(moments == Moments::fp32 || part.first % block == 0,
          "optimizer: the part does not begin with a block");
  require(moments != Moments::int8 || part.elements % scale_block == 0,
          "optimizer: the part is not of whole blocks");
  require(!split || std::holds_alternative<std::span<bfloat16>>(part.working_copy),
          "optimizer: the working copy of a split parameter is not bf16");
}

void add_moment(std::vector<Plane>& planes, std::vector<Plane>& scales, std::string const& name,
                Moments moments, PlaneType in_8_bits) {
  switch (moments) {
    case Moments::fp32:
      planes.push_back({.name = name, .type = PlaneType::fp32});
      return;
    case Moments::bf16:
      planes.push_back({.name = name, .type = PlaneType::bf16});
      return;
    case Moments::int8:
      planes.push_back({.name = name, .type = in_8_bits});
      scales.push_back(
          {.name = name + "_scale", .type = PlaneType::fp32, .elements_per_value = scale_block});
      return;
  }
}

}  // namespace

std::string_view name_of(Optimizer optimizer) {
  switch (optimizer) {
    case Optimizer::adamw:
      return "adamw";
    case Optimizer::adam:
      return "adam";
    case Optimizer::adagrad:
      return "adagrad";
    case Optimizer::rmsprop:
      return "rmsprop";
    case Optimizer::sgd:
      return "sgd";
    case Optimizer::lion:
      return "lion";
  }
  throw PreconditionError{"optimizer: no such rule"};
}

std::string_view name_of(Moments moments) {
  switch (moments) {
    case Moments::fp32:
      return "fp32";
    case Moments::bf16:
      return "bf16";
    case Moments::int8:
      return "8bit";
  }
  throw PreconditionError{"optimizer: no such moments"};
}

StateLayout state_layout(Optimizer optimizer, Moments moments, bool has_momentum, bool split) {
  Rule const rule = rule_of(optimizer, has_momentum);
  std::vector<Plane> planes{
      {.name = "parameter", .type = split ? PlaneType::low16 : PlaneType::fp32}};
  std::vector<Plane> scales;
  if (keeps_momentum(rule)) {
    add_moment(planes, scales, "momentum", moments, PlaneType::signed8);
  }
  if (keeps_variance(rule)) {
    add_moment(planes, scales, "variance", moments, PlaneType::unsigned8);
  }
  if (planes.size() == 1 && moments != Moments::fp32) {
    throw UsageError{std::string{"optimizer.moments="}.append(name_of(moments)) +
                     ": optimizer.kind=" + std::string{name_of(optimizer)} +
                     " without momentum keeps no moments; write optimizer.moments=fp32, or "
                     "optimizer.momentum above 0"};
  }
  planes.insert(planes.end(), scales.begin(), scales.end());
  return StateLayout{std::move(planes)};
}

OptimizerCall call_of(StateLayout const& layout, OptimizerPart const& part,
                      OptimizerStep const& step) {
  require(step.step >= 1, "optimizer: step counts from 1");
  bool const has_momentum = step.momentum > 0.0;
  bool const split = layout.planes().front().type == PlaneType::low16;
  Moments const moments = moments_of(layout);
  require(layout == state_layout(step.optimizer, moments, has_momentum, split),
          "optimizer: the planes are not those of the rule");
  require_fit(part, moments, split);
  OptimizerCall call{
      .rule = rule_of(step.optimizer, has_momentum),
      .moments = moments,
      .split = split,
      .gradient_type = type_of(part.gradient.index()),
      .working_copy_type = type_of(part.working_copy.index()),
      .parameter = nullptr,
      .momentum = nullptr,
      .variance = nullptr,
      .momentum_scale = nullptr,
      .variance_scale = nullptr,
      .gradient = std::visit(
          [](auto span) { return reinterpret_cast<std::byte const*>(span.data()); }, part.gradient),
      .working_copy = std::visit(
          [](auto span) { return reinterpret_cast<std::byte*>(span.data()); }, part.working_copy),
      .count = static_cast<std::size_t>(part.elements),
      .decayed = static_cast<std::size_t>(part.decayed),
      .first_block = part.first / block,
      .layer = part.layer,
      .step = static_cast<std::uint64_t>(step.step),
      .seed = step.seed,
      .decayed_by = coefficients_of(step, true),
      .not_decayed = coefficients_of(step, false)};
  for (std::size_t i = 0; i < layout.planes().size(); ++i) {
    std::string const& name = layout.planes()[i].name;
    std::byte* const begin = part.planes[i];
    if (name == "parameter") {
      call.parameter = begin;
    } else if (name == "momentum") {
      call.momentum = begin;
    } else if (name == "variance") {
      call.variance = begin;
    } else if (name == "momentum_scale") {
      call.momentum_scale = reinterpret_cast<float*>(begin);
    } else {
      call.variance_scale = reinterpret_cast<float*>(begin);
    }
  }
  return call;
}

OptimizerCall part_of(OptimizerCall const& call, std::size_t begin, std::size_t count) {
  OptimizerCall part = call;
  auto const bytes_of_type = [](DType type) {
    return static_cast<std::size_t>(offstage::bytes_of(type));
  };
  auto const advance = [](auto*& pointer, std::size_t by) {
    if (pointer != nullptr) {
      pointer += by;
    }
  };
  advance(part.parameter, begin * (call.split ? 2 : 4));
  advance(part.momentum, begin * bytes_of(call.moments));
  advance(part.variance, begin * bytes_of(call.moments));
  advance(part.momentum_scale, begin / block);
  advance(part.variance_scale, begin / block);
  advance(part.gradient, begin * bytes_of_type(call.gradient_type));
  advance(part.working_copy, begin * bytes_of_type(call.working_copy_type));
  part.count = count;
  part.decayed = std::min(count, std::max(call.decayed, begin) - begin);
  part.first_block = call.first_block + begin / block;
  return part;
}

BlockKey key_of(OptimizerCall const& call, std::size_t at) {
  auto const words =
      philox(call.seed ^ rounding_stream, (call.layer << 40U) ^ call.step, call.first_block + at);
  return {words[0], words[1]};
}

}  // namespace offstage::kernels

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace offstage::tensorboard {

/// One figure of a step. `tag`: its curve's name, UTF-8; what stands before its first slash groups
/// curves.
struct Scalar {
  std::string tag;
  double value{};  ///< stored as float
};

/// Events as TensorBoard reads them: messages Event, Summary and SessionLog of
/// tensorflow/core/util/event.proto and framework/summary.proto, in protobuf's wire format.
/// `time`: seconds since 1970.
/// The first of a file.
[[nodiscard]] std::string version_event(double time);
/// Steps from `step` on, of earlier files of the directory, do not count any more.
[[nodiscard]] std::string start_event(double time, std::int64_t step);
[[nodiscard]] std::string scalars_event(double time, std::int64_t step,
                                        std::span<Scalar const> scalars);

/// `event` as a record of a TFRecord file: its length and both their checksums around it.
[[nodiscard]] std::string framed(std::string_view event);

}  // namespace offstage::tensorboard
